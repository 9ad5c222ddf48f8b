"""Pipelines: what each stage computed when, the messages between stages, and what of the idle time is the schedule's.

one rank's rows: `rows.py`, `messages.py`; all ranks together: `turns.py`; what a schedule implies: `schedule.py`
"""
