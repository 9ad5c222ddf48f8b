"""Pure functions from the tables of a run to the tables a person reads. No files, no pictures, no torch.

In: a `Run` (`ddptrace/load/tables.py`); for `diagnosis`, a `JobState` (`ddptrace/load/diagnosis/tables.py`). Out: a
`Result`, and what is worked out from one or several of them; for `diagnosis`, a `Diagnosis`.

Begin with `analyze.py`: one rank at a time (`rank_view.py`), then all ranks together (`run_view.py`). `result.py`
declares every table that comes out, `tables/` has their rows, `summary.py` the typical step. Each other room is one
subject. A subject has the same name here and in `ddptrace/render`, where both have it.

steps        phases, computing, where the time of each step went     traffic    bytes over the wire
buckets      which communication carried which gradients             rpc        remote calls
collectives  when each ran, and how fast                             device     what ran there, and who launched it
matching     which calls of different ranks were one collective      findings   what all this means, in sentences
pipeline     what each stage computed, and what of the rest is bubble
clocks       how far the clocks of the ranks lie apart               whatif     the step with other settings
ranks        who waited for whom, and why                            diff       what changed between runs
diagnosis    what a job that hangs or died was doing                 hta        the same files, read by HTA
timeline     host and device of profiled steps, to be played again
units        which communication serves which part of the model, along which dimension of parallelism
experts      how uneven all-to-alls are, and what that costs
"""
