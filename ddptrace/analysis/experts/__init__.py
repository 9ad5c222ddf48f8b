"""Experts: what all-to-alls send to whom, how uneven that is, and what it costs.

In: rows of `exchanges`, which `traffic/rows.py` makes. Out: a digest of each layer.
"""
