"""What a step would take if it were set up otherwise, worked out from one recorded run. Pure arithmetic.

In: the `RankRun` of every rank, and a `Setting`. Out: a `Prediction` with an interval, a `WhatIf`, an `Advice`.

observed   one rank's steps: its own times, when each gradient was ready, what was sent when
model      all ranks together: compute without communication beside it, and what a collective costs (fit)
play       a step played with other buckets, another wire, other ranks; again: all recorded steps
predict    a question answered, with an interval and what it rests on, or not at all
advise     the best plan among many, what limits the step, and the advice held against a run made with it
answer     the usual questions together, and the forecast of a report
"""
