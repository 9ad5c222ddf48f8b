"""Steps: their phases, when the rank computed, and where their time went.

In: a `RankView`. Out: rows of `steps`, `partial_steps`, `phases`, `windows`, `contention` and `jitter`.
"""
