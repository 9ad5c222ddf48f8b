"""How many bytes go over the wire, between whom, and whether that is what gradients need.

In: a `RankView`, then a `Result`. Out: rows of `traffic`, `gradient_traffic` and `exchanges`, and the report of
`ddptrace traffic`.
"""
