"""What changed between two sides of runs.

In: a `Diff`. Out: what `ddptrace diff` prints, and a sheet with charts.
"""
