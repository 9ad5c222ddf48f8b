"""What no rank can tell alone: who waited for whom, on one time line, and why.

In: the tables of all ranks, matched and aligned. Out: rows of `matches`, `arrivals`, `blame`, `suspects` and
`critical_path`.
"""
