"""Run directories and traces that somebody has damaged or named to do harm, and what every command makes of them.

    bases      real runs, recorded once
    ways       how one of their files, records or JSON values is spoiled; by seed, so that a mutant can be made again
    hostile    texts that would act where they are shown: terminal escapes, markup, bidirectional marks
    commands   what reads: each command in this process, as click runs it
    trial      one mutant in a child with a limit of time and memory, and the judgement

`python -m tests.mutants --mutants 10000` makes and counts as many. `--only SEED` makes one again and tells all of it.
"""
