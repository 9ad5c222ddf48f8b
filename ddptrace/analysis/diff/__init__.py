"""What changed between two sides of one run or several each. Begin with tables.py, then compare.py.

In: the `Result` of every run, and how each was set up. Out: a `Diff`.

runs ─▶ one_run.py: what is compared of each ─▶ compare.py ─▶ changes.py: how surely ─▶ Diff
"""
