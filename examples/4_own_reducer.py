"""The project's own reducer instead of stock DistributedDataParallel, and a look at what it does in one backward.

    torchrun --nproc-per-node 2 examples/4_own_reducer.py

It trains the demo's model for a few steps and prints, for the last backward, when each bucket left and when it was
back. Most are back before backward ends: hidden. With `--cap-mb 1000` all but a small first one leave only at its end.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from char_gpt_model import CharGPT, Windows, standard_library_text
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from ddptrace.reducer import BucketedDataParallel, LayoutMade, ReducerMade

STEPS, BATCH, WIDTH = 8, 4, 60


class Stopwatch:
    """A `BucketObserver` that keeps the times of the backward that it saw last."""

    def reducer_made(self, made: ReducerMade) -> None:
        self.made = made

    def layout_made(self, made: LayoutMade) -> None:
        self.layout = made

    def backward_begins(self, backward: int) -> None:
        self.begin, self.left, self.done = time.perf_counter(), dict[int, float](), dict[int, float]()

    def bucket_launched(self, bucket: int, sent: Any) -> None:
        self.left[bucket], done = time.perf_counter(), self.done
        sent.get_future().add_done_callback(lambda _: done.__setitem__(bucket, time.perf_counter()))

    def backward_ends(self, backward: int) -> None:
        self.end = time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        return lambda *told: None  # of the rest it wants to know nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cap-mb", type=float, default=4, help="bucket cap in MiB")
    cap_mb = parser.parse_args().cap_mb

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    windows = Windows(standard_library_text())
    loader = DataLoader(windows, BATCH, sampler=DistributedSampler(windows), drop_last=True)
    watch = Stopwatch()
    model = BucketedDataParallel(CharGPT(), bucket_cap_mb=cap_mb, first_bucket_mb=min(1, cap_mb), observer=watch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (tokens, targets) in zip(range(STEPS), loader, strict=False):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(f"step {step}   loss {loss.item():.3f}")
    draw(watch)
    dist.destroy_process_group()
    os._exit(0)  # Gloo now and then aborts while Python shuts down


def draw(watch: Stopwatch) -> None:
    """One lane for each bucket, from where it left to where the collective was over."""
    scale = WIDTH / (watch.end - watch.begin)
    say(f"\nthe last backward, {(watch.end - watch.begin) * 1e3:.0f} ms, from its first gradient on:")
    for bucket, indices in enumerate(watch.layout.buckets):
        nbytes = sum(watch.made.parameters[index].nbytes for index in indices)
        left, done = (round((at - watch.begin) * scale) for at in (watch.left[bucket], watch.done[bucket]))
        lane = " " * left + "[" + "=" * (done - left)
        say(f"bucket {bucket}  {nbytes / 2**20:5.1f} MiB  |{lane:<{WIDTH + 1}}|")


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
