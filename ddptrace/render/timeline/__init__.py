"""Advice on runs whose buckets cannot be planned: what limits the step, each with the step without it.

In: a `RunAdvice` and its `Result`. Out: lines for the terminal.
"""
