"""The last that every rank of a job recorded, read while it runs or afterwards.

In: a run directory. Out: a `JobState`.
"""
