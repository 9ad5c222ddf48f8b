"""Train a byte-level GPT with stock DistributedDataParallel, traced.

    torchrun --nproc-per-node 2 examples/1_char_gpt.py run/demo
    ddptrace analyze run/demo

It reads the source of Python's standard library until its loss is below the text's own byte-bigram entropy: by then it
knows more than which byte follows which. That takes under a minute on two cores. The analysis then says where the step
time went, which gradient bucket's communication was not hidden, and where the trace and the report are.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from char_gpt_model import CharGPT, Windows, bigram_entropy, standard_library_text
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ddptrace

BATCH, LEARNING_RATE, WARMUP_STEPS, MAX_STEPS = 4, 1e-3, 20, 2000
SAID_EVERY, AVERAGED_OVER = 10, 20  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/demo", help="run directory; its old run is replaced")
    out = parser.parse_args().out

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    text = standard_library_text()
    windows, target = Windows(text), bigram_entropy(text)
    loader = DataLoader(windows, BATCH, sampler=DistributedSampler(windows), drop_last=True)
    model = DistributedDataParallel(CharGPT(), bucket_cap_mb=4)  # small enough for several buckets
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} bytes of text, "
        f"byte-bigram entropy {target:.3f} nats: training until the loss is below that")  # fmt: skip

    window = torch.profiler.schedule(wait=20, warmup=1, active=3, repeat=1)
    with ddptrace.trace(out, profile=window, overwrite=True):
        reached = train(model, loader, target)

    dist.destroy_process_group()
    if not reached:
        raise SystemExit(f"The loss was not below {target:.3f} after {MAX_STEPS} steps.")
    os._exit(0)  # all is written; stock Gloo DDP now and then aborts while Python shuts down


def train(model: DistributedDataParallel, loader: DataLoader[tuple[Tensor, Tensor]], target: float) -> bool:
    """Train until the mean loss of the last steps, over all ranks, is below `target`; False where it never was."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP_STEPS, total_iters=WARMUP_STEPS)
    losses: list[Tensor] = []
    begin = said_at = time.perf_counter()
    for step, (tokens, targets) in enumerate(loader, 1):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        losses.append(loss.detach())
        if step % SAID_EVERY == 0:
            mean = mean_over_ranks(losses[-AVERAGED_OVER:])
            now = time.perf_counter()
            step_ms = (now - said_at) / SAID_EVERY * 1e3
            say(f"step {step:4d}   loss {mean:.3f}   target {target:.3f}   {step_ms:4.0f} ms/step")
            said_at = now
            if mean < target and step >= AVERAGED_OVER:
                say(f"below the byte-bigram entropy after {step} steps, {now - begin:.0f} s")
                return True
            if step >= MAX_STEPS:
                break
    return False


def mean_over_ranks(losses: list[Tensor]) -> float:
    """The same number on every rank, so that all stop at the same step."""
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
