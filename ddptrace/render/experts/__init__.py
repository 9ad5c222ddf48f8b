"""All-to-alls, for the terminal and the report.

In: `exchanges` of a `Result`, as digests. Out: lines, a section and a heat map.
"""
