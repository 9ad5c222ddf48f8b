"""Brings spans and metrics to their destinations, from the process that reads a run: never from the one that trains.

In: a run that grows or the `Result` of a finished one (`exports.py`), and the destinations that a user asked for
(`targets.py`). Out: requests to collectors, lines in a file or on the terminal, and counts of what each
destination accepted, refused or never got.

Nothing is dropped here without being counted and reported; what was not delivered is still in the run directory.
"""
