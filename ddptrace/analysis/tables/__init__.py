"""Every table that `ddptrace.analyze` answers with, by subject: `result` holds them all.

Times are integer nanoseconds, instants (`_at_ns`) since the run's zero, ratios 0..1, `None` = not measured.
"""
