"""How many bytes go over the wire, between whom, and whether that is what gradients need.

In: a `RankView`, then a `Result`. Out: rows of `traffic` and `gradient_traffic`, and the report of `ddptrace
traffic`.
"""
