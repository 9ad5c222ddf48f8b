"""What tracing costs: `python -m ddptrace.bench.overhead` (or `make bench-overhead`).

Two Gloo ranks train the demo's model with stock DDP. Each round runs the same few steps untraced, traced, traced in a
profiler window, and untraced again, in an order that changes from round to round; a round's ratio is that mode's median
step over the untraced one's beside it. The second untraced block is the null control: its ratio is what noise is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.bench.models import Gpt
from ddptrace.bench.statistics import median_interval, quantile
from ddptrace.record import Recorder
from ddptrace.schema import Kind

MODES = ("off", "null control", "always-on", "profiled")
WARMUP_STEPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what ddptrace costs a training step on this machine.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of each mode in a round")
    options = parser.parse_args()
    print(f"one record: {record_ns():.0f} ns\n")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_train, (folder, options.rounds, options.steps), nprocs=2)
        rounds = json.loads(Path(folder, "rounds.json").read_text())
    print(table(rounds))


def record_ns(count: int = 100_000) -> float:
    """Mean cost of appending one record, in ns, the loop around it taken off. Best of five."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(lambda: Path(folder))
        cost = min(_per_call_ns(lambda: recorder.event(Kind.DONE, 0, 0, 1, 1, 1), count) for _ in range(5))
        recorder.close()
    return cost - min(_per_call_ns(lambda: None, count) for _ in range(5))


def table(rounds: list[dict[str, float]]) -> str:
    """Markdown: per mode the median ratio to "off" over the rounds, its 95 % interval, the spread of single rounds."""
    base = statistics.median(round_["off"] for round_ in rounds)
    lines = [
        f"2 ranks, {len(rounds)} rounds, untraced step {base / 1e6:.1f} ms (median)\n",
        "| mode | step ratio to off | 95 % of the median | single rounds, 5..95 % |",
        "|---|---|---|---|",
    ]
    for mode in MODES[1:]:
        ratios = sorted(round_[mode] / round_["off"] for round_ in rounds)
        low, high = median_interval(ratios)
        spread = f"{quantile(ratios, 0.05):.4f} .. {quantile(ratios, 0.95):.4f}"
        lines.append(f"| {mode} | {statistics.median(ratios):.4f} | {low:.4f} .. {high:.4f} | {spread} |")
    return "\n".join(lines)


def _per_call_ns(call: Callable[[], None], count: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count


def _train(rank: int, folder: str, rounds: int, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(Gpt(), bucket_cap_mb=4)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(256, (2, 4, 64), generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        model(tokens[0], tokens[1]).backward()
        optimizer.step()
        optimizer.zero_grad()

    order, measured = random.Random(0), []
    for number in range(-1, rounds):  # the first round warms up
        modes = list(MODES)
        order.shuffle(modes)
        measured.append({mode: _block(step, mode, steps, f"{folder}/run-{number}-{mode}") for mode in modes})
        if rank == 0:
            print(f"\rround {number + 1} of {rounds}", end="\n" if number + 1 == rounds else "", flush=True)
    if rank == 0:
        Path(folder, "rounds.json").write_text(json.dumps(measured[1:]))
    dist.destroy_process_group()


def _block(step: Callable[[], None], mode: str, steps: int, run: str) -> float:
    """Median time of a few steps in ns, the slower rank's."""
    with _mode(mode, steps, run):
        for _ in range(WARMUP_STEPS):
            step()
        times = []
        for _ in range(steps):
            dist.barrier()
            begin = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - begin)
    slowest = torch.tensor(float(statistics.median(times)))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def _mode(mode: str, steps: int, run: str) -> contextlib.AbstractContextManager[object]:
    if mode == "always-on":
        return ddptrace.trace(run)
    if mode == "profiled":
        window = torch.profiler.schedule(wait=0, warmup=1, active=WARMUP_STEPS + steps, repeat=1)
        return ddptrace.trace(run, profile=window)
    return contextlib.nullcontext()


if __name__ == "__main__":
    main()
