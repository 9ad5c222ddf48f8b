"""From the records of one rank to its `RankRun`.

In: rows of the schema's EVENT records, and what the rank described in JSON. Out: steps, calls, hooks, gradients,
remote calls, host load.

Begin with `rank_run.py`, which calls the others.

rank_events    records with their texts, kind by kind, on the run's time: all others read these
calls          who wanted each call, when it was over, what all-to-alls send to whom, remote calls
described      groups, reducers and bucket layouts, and what the host did to the rank
device_times   a device's instants as instants of the run, with their error
kept           which steps are whole, where `ddptrace.Keep` deleted records
units          units of communication, and which collective belongs to which
"""
