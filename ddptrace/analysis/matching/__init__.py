"""Which calls of different ranks were one collective, and where ranks part in what they call.

In: the collectives of all ranks. Out: rows of `matches` without times, rows of `desyncs`.
"""
