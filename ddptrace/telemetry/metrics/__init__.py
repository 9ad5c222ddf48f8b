"""Adds up the metrics of all ranks.

In: a rank's rows (`../rows.py`), batch by batch or all at once. Out: the totals as of now, in the SDK's own data
(`totals.py`), or at an endpoint for Prometheus (`prometheus.py`).

`instruments.py` declares each metric, `rank_totals.py` gives it its value. `meetings.py` finds out, while the run still
grows, which rank the others waited for.
"""
