"""From the records of one rank to its `RankRun`.

In: rows of the schema's EVENT records, and what the rank described in JSON. Out: steps, calls, hooks, gradients,
remote calls, host load.
"""
