"""Rows of every table that `ddptrace.analyze` returns, by subject; `ddptrace/analysis/result.py` declares the tables.

In: nothing. Out: one frozen dataclass for each table; `Table`, a sequence of rows with its ways out; and how `Result`
declares its tables (`declare.py`).

Times are integer nanoseconds, instants (`_at_ns`) since the run's zero, ratios 0..1, `None` = not measured.
"""
