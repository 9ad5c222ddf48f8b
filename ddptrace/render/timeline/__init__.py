"""Advice on runs whose buckets cannot be planned.

In: a `RunAdvice` and its `Result`. Out: what `ddptrace advise` prints.
"""
