"""Pipelines: what each stage computed when, the messages between stages, and what of the idle time is the schedule's.

In: a rank's units and messages (`rows.py`), then those of all ranks together (`turns.py`). Out: rows of `messages`,
`pipeline` and `bubbles`, a digest of each pipeline, and the step with other schedules (`forecast.py`).
"""
