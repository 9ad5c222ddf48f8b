"""Gradient buckets: which communication carried which bucket of which layout.

In: a rank's calls, hooks, reducers and ready times. Out: rows of `buckets`, and each reducer in short.
"""
