"""Does a larger batch make a model send more that is cut between two workers? Three batch sizes, and the bytes of each.

    torchrun --nproc-per-node 2 examples/9_traffic_rpc_layer_boundary.py run/boundary
    ddptrace traffic run/boundary/64

It does: at the boundary between two layers the activations travel, and in distributed autograd's backward their
gradients travel back, batch x width x 4 bytes in each direction, however few parameters there are. Beside them go a few
hundred bytes of the call itself, and the small result with its gradient.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc

import ddptrace

BATCHES, STEPS, WIDTH, CLASSES = (16, 64, 256), 5, 1024, 10

torch.manual_seed(0)
body, head = nn.Linear(32, WIDTH), nn.Linear(WIDTH, CLASSES)
"""Worker 0 trains the body and worker 1 the head; each has both and uses its own."""


def run_head(activations: Tensor) -> Tensor:
    logits: Tensor = head(activations.relu())
    return logits


def update(context: int) -> None:
    """Each worker has the gradients of its own half."""
    with torch.no_grad():
        for parameter, gradient in dist_autograd.get_gradients(context).items():  # type: ignore[attr-defined]
            parameter -= 0.05 * gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/boundary", type=Path, help="folder for a run of each batch")
    out: Path = parser.parse_args().out

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    for batch in BATCHES:
        with ddptrace.trace(out / str(batch), overwrite=True) as traced:
            if rank == 0:
                train(batch, traced)
            dist.barrier()  # worker 1 comes here at once; its other threads serve worker 0
    rpc.shutdown()
    if rank == 0:
        show(out)
    dist.destroy_process_group()
    os._exit(0)  # all is written; Gloo now and then aborts while Python shuts down


def train(batch: int, traced: ddptrace.trace) -> None:
    for _ in range(STEPS):
        inputs, targets = torch.randn(batch, 32), torch.randint(CLASSES, (batch,))
        with dist_autograd.context() as context:
            logits = rpc.rpc_sync("worker1", run_head, args=(body(inputs),))
            dist_autograd.backward(context, [nn.functional.cross_entropy(logits, targets)])  # type: ignore[attr-defined]
            update(context)
            rpc.rpc_sync("worker1", update, args=(context,))
        traced.step()


def show(out: Path) -> None:
    """Of one call at the boundary, the mean over all: what went out with it, and what came back for it in backward."""
    print(f"{'batch':>6} {'batch x width x 4':>18} {'sent out':>12} {'gradients back':>15}")
    for batch in BATCHES:
        calls = [row for row in ddptrace.analyze(out / str(batch)).rpcs if row.function == "run_head"]
        there = sum(row.nbytes_out or 0 for row in calls) / len(calls)
        back = sum(row.gradient_nbytes_back or 0 for row in calls) / len(calls)
        print(f"{batch:>6} {batch * WIDTH * 4:>18,} {there:>12,.0f} {back:>15,.0f}", flush=True)


if __name__ == "__main__":
    main()
