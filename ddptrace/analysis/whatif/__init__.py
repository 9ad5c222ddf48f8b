"""What a step would take if it were set up otherwise, worked out from one recorded run. Pure arithmetic.

In: the `RankRun` of every rank, and a `Setting`. Out: a `Prediction` with an interval, a `WhatIf`, an `Advice`.

tables     what is asked (`Setting`), and what it is answered with
observed   one rank's steps: its own times, when each gradient was ready, what was sent when
fit        what the recorded collectives say of the wire: latency and bytes per second
wire       what a collective costs, by its bytes and the number of ranks
model      all ranks together: compute without communication beside it, and what a collective costs
play       one backward, with other buckets, another wire, other ranks
again      all recorded steps, one after the other, with what was changed
predict    a question answered, with an interval and what it rests on, or not at all
advise     the best plan among many, what limits the step, and the advice held against a run made with it
answer     the usual questions together, and the forecast of a report for many more ranks

Steps are predicted in four ways. `ddptrace/predictor.py` looks at the run, and chooses one:

gradients reduced on CPUs   predict.py, by `again` and `play`
GPU traces                  ddptrace/analysis/timeline/forecast.py
pipelines                   ddptrace/analysis/pipeline/forecast.py
FSDP units                  ddptrace/analysis/units/forecast.py, by the `play.py` of that room

`ddptrace/analysis/ranks/replay.py` answers another question, without a setting: how much time the recorded run
loses to each rank, and to slow transfers. The rows of `blame` and `suspects` are made of that.
"""
