"""`ddptrace bench ...` with less to compute: a smaller batch of the mlp, and a smaller model that learns text.

Where ANALYZED is set, this rank leaves there, in <rank>.json, how often it analyzed each run. ONE_CORE: all ranks share
one.
"""

import dataclasses
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ddptrace
from ddptrace.bench.experiments import no_sync
from ddptrace.bench.workloads import WORKLOADS, Gpt
from ddptrace.cli import main

BATCH_SIZE = 32
LAYERS = 1

WORKLOADS["mlp"] = dataclasses.replace(WORKLOADS["mlp"], batch_size=BATCH_SIZE)
no_sync.Gpt = lambda layers, **shape: Gpt(LAYERS, **shape)
analyze, analyzed = ddptrace.analyze, Counter[str]()


def counting(path: Path, **how: Any) -> ddptrace.Result:
    analyzed[Path(path).name] += 1
    if "ANALYZED" in os.environ:
        Path(os.environ["ANALYZED"], f"{os.environ['RANK']}.json").write_text(json.dumps(analyzed))
    return analyze(path, **how)


ddptrace.analyze = counting
if "ONE_CORE" in os.environ:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
main(["bench", *sys.argv[1:]])
