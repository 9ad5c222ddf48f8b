"""`python -m benchmarks overhead ...` that times each instrument a few times, not hundreds, for its least time."""

from __future__ import annotations

import runpy

from benchmarks import overhead_costs

TRIALS = 10

overhead_costs._least = lambda loop, trials=TRIALS: min(loop() for _ in range(min(trials, TRIALS)))
runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
