"""Pipeline parallelism: each of two ranks has half of the layers, and a batch passes in small parts.

    torchrun --nproc-per-node 2 examples/7_pipeline_parallel.py run/pipeline
    ddptrace traffic run/pipeline

Where the model is cut, activations go on to the next rank in forward, and their gradients come back in backward: one
message each way for each micro-batch, of the size of its activations. No other communication is needed.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import ddptrace

STEPS, BATCH, MICRO_BATCHES, WIDTH, LAYERS = 6, 32, 4, 256, 3


def layers() -> nn.Sequential:
    """A rank's half of the model."""
    return nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/pipeline", help="run directory; its old run is replaced")
    out = parser.parse_args().out

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # each rank has layers of its own
    model = layers()
    stage = PipelineStage(model, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(out, overwrite=True):
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, WIDTH)
            if stage.is_first:
                schedule.step(inputs)
            else:
                schedule.step(target=torch.zeros(BATCH, WIDTH))
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # now every rank has written
    if dist.get_rank() == 0:
        show(out)
    dist.destroy_process_group()
    os._exit(0)  # all is written; Gloo now and then aborts while Python shuts down


def show(out: str) -> None:
    """Messages of one step, by the ranks that they go between and by the line of this file that sends them."""
    rows = [row for row in ddptrace.analyze(out).collectives if (row.step, row.part) == (STEPS - 1, 0)]
    print(f"{'from':>4} {'to':>4} {'a step':>6} {'bytes each':>12}  line")
    sends = Counter((row.rank, row.peer, row.nbytes, row.site) for row in rows if row.op == "send")
    for (rank, peer, nbytes, site), count in sorted(sends.items(), key=str):
        print(f"{rank:>4} {peer:>4} {count:>6} {nbytes:>12,}  {site}", flush=True)


if __name__ == "__main__":
    main()
