"""Pipelines, for the terminal and the report.

In: `pipeline` and `bubbles` of a `Result`, as digests. Out: lines, a section and the schedule drawn.
"""
