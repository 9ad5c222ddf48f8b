"""Experts: what all-to-alls send to whom, how uneven that is, and what it costs.

In: a rank's calls, then those of all ranks. Out: rows of `exchanges`, and a digest of each layer.
"""
