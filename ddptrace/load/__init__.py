"""From a run directory, or from profiler files of others, to plain tables. Needs no torch, nor what recorded the run.

In: paths. Out: a `Run` of one `RankRun` for each rank (`tables.py`), or the `JobState` of a job that may still go on.

Begin with `run.py`: what there is to read, as a plan, and each rank of it read on its own.

run_folder       a run directory: manifest, attempts, ranks      records    from a rank's records to its `RankRun`
sources          profiler files, sorted by rank                  windows    what a profiler window adds to that
alive            whether the process that recorded still lives   kineto     profiler files as columns
nccl_files       what NCCL itself wrote of its collectives       foreign    profiler files that ddptrace did not make
flight_recorder  the last, from torch's own dumps                diagnosis  the last that each rank recorded
"""
