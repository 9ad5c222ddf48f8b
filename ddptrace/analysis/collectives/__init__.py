"""Collectives of one rank: when each ran, what the host waited, how fast it was.

In: a rank's calls and profiler windows. Out: rows of `collectives` and `groups`, transfer times by size, digests for
a reader.
"""
