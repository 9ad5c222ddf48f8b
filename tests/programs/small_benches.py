"""`ddptrace bench ...` with less to compute: a smaller batch of the mlp, and a smaller model that learns text."""

import dataclasses
import sys

from ddptrace.bench.experiments import no_sync
from ddptrace.bench.workloads import WORKLOADS, Gpt
from ddptrace.cli import main

BATCH_SIZE = 32
LAYERS = 1

WORKLOADS["mlp"] = dataclasses.replace(WORKLOADS["mlp"], batch_size=BATCH_SIZE)
no_sync.Gpt = lambda layers, **shape: Gpt(LAYERS, **shape)
main(["bench", *sys.argv[1:]])
