"""What the numbers mean, in sentences: what was seen, what it rests on, what to try.

In: `RankFacts`, a `Result` and its `Summary`. Out: rows of `findings`, in the order of `findings.py`.
"""
