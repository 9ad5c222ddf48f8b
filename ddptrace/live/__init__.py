"""A run while it grows: each rank's new steps as tables, once they are complete. It knows no reader of them.

In: a run directory that a job still writes. Out: a `RankBatch` for each stretch of complete steps of a rank, or, for
`ddptrace watch`, the last steps of all ranks as a `Result`.

run_follower   all ranks, from their first record to their last: begin here
rank_follower  one rank: record files into tables, a few steps at a time
run_folders    finds the folders of ranks, and says whether a rank will write more
batch          what comes out: complete steps of a rank, and counts of what was lost
watched        a growing run for a screen: its newest attempt and its last steps
asking         asks a running job for a profiler window
"""
