"""`ddptrace bench NAME`: what communication costs on the user's own machines, one command for each experiment."""

from __future__ import annotations

from typing import Any, Final

import click

from ddptrace.cli.bench_options import SIZE, cap, names, numbers, reducer, run, timed, trained

OPS: Final = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,send_recv"
EXPERIMENTS: Final = "ddptrace.bench.experiments"


@click.group()
def bench() -> None:
    """Measure what things cost on this machine."""


@bench.command()
@trained("--workload", "convnet", "resnet50")
@reducer()
@click.option(
    "--caps",
    "caps_mb",
    default="0,0.5,1,2,4,8,16,all",
    show_default=True,
    callback=names,
    help="In MiB; 0 is a bucket for each parameter, all one bucket.",
)
@timed("buckets")
def buckets(**asked: Any) -> None:
    """Step time over bucket cap, with what is hidden at each: which cap is best here, and why."""
    run(f"{EXPERIMENTS}.buckets", **asked)


@bench.command()
@click.option("--ops", default=OPS, show_default=True, callback=names, help="Collectives to measure.")
@click.option(
    "--sizes",
    default="1MB,4MB,16MB,64MB,256MB,1000MB",
    show_default=True,
    callback=names,
    help="Decimal, kB to GB. Small ones, as in 4kB,64kB,1MB, tell what a start costs.",
)
@timed("collectives", ranks="2,4,6")
def collectives(**asked: Any) -> None:
    """Time, algbw and busbw of collectives, what a start costs, and the time that a trace shows beside it."""
    run(f"{EXPERIMENTS}.collectives", **asked)


@bench.command()
@trained("--models", "gpt,mlp", "resnet50,bert,gpt2-xl")
@click.option(
    "--caps",
    "caps_mb",
    default="25",
    show_default=True,
    callback=names,
    help="In MiB, of the buckets of bucketed and ddp.",
)
@click.option(
    "--strategies",
    default="naive,flat,overlap,bucketed,ddp",
    show_default=True,
    callback=names,
    help="Some of these; ddp is always measured, twice.",
)
@timed("ddp")
def ddp(**asked: Any) -> None:
    """Step time of naive, flat, overlap and bucketed beside stock DDP's, and how much communication each hides."""
    run(f"{EXPERIMENTS}.ddp", **asked)


def _whole_floats(ctx: click.Context, parameter: click.Parameter, megabytes: float) -> int:
    """Return bytes that hold whole float32 elements, at least one."""
    return max(4, round(megabytes * 1e6) // 4 * 4)


@bench.command()
@click.option("--groups", default="1,2,4,8", show_default=True, callback=numbers, help="How many at once.")
@click.option(
    "--mb", "nbytes", type=SIZE, default=4, show_default=True, callback=_whole_floats, help="Size of one all-reduce."
)
@click.option("--calls", type=click.IntRange(min=1), default=4, show_default=True, help="All-reduces in each group.")
@click.option("--threads", default="1,2,4", show_default=True, callback=numbers, help="Gloo's, in each group, to try.")
@click.option(
    "--try",
    "environments",
    multiple=True,
    metavar="NAME=VALUE",
    default=("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo"),
    show_default=True,
    callback=lambda ctx, parameter, values: tuple(filter(None, values)),
    help='Environment of one more job; repeat it for several; "" for none.',
)
@timed("groups", ranks="16")
def groups(**asked: Any) -> None:
    """All-reduce in many process groups at once: its time, and whether cores, queues or the wire make it grow."""
    run(f"{EXPERIMENTS}.groups", **asked)


@bench.command()
@trained("--workload", "gpt", "bert")
@reducer()
@click.option("--hooks", default="fp16,bf16,PowerSGD,quantization", show_default=True, callback=names)
@cap(4)
@timed("hooks")
def hooks(**asked: Any) -> None:
    """Bytes, step time and error of gradients with compressing communication hooks, against none."""
    run(f"{EXPERIMENTS}.hooks", **asked)


@bench.command("no-sync")
@reducer()
@click.option(
    "--counts",
    default="1,2,4,8",
    show_default=True,
    callback=numbers,
    help="Micro-batches for each synchronisation; 1 is needed.",
)
@click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Of each rank, trained on for the loss curve; down to whole updates of every count.",
)
@timed("no-sync")
def no_sync(**asked: Any) -> None:
    """Time per sample with 1, 2, 4, 8 micro-batches a synchronisation, and the loss after the same samples."""
    run(f"{EXPERIMENTS}.no_sync", **asked)


@bench.command("round-robin")
@trained("--workload", "mlp", "bert")
@click.option(
    "--groups", default="1,3,5", show_default=True, callback=numbers, help="How many take turns; 1 is needed."
)
@cap(1)
@timed("round-robin")
def round_robin(**asked: Any) -> None:
    """Step time with 1, 3 and 5 process groups in turn: does one group fill the link?"""
    run(f"{EXPERIMENTS}.round_robin", **asked)


@bench.command()
@trained("--workload", "gpt", "resnet50")
@cap(25)
@timed("scale", ranks="1,2,4")
def scale(**asked: Any) -> None:
    """Samples per second over workers, each with a batch of its own: how much of each further worker is left."""
    run(f"{EXPERIMENTS}.scale", **asked)


@bench.command()
@trained("--workload", "gpt", "bert")
@cap(4)
@timed("unused")
def unused(**asked: Any) -> None:
    """Step time with find_unused_parameters against without, and what the difference is made of."""
    run(f"{EXPERIMENTS}.unused", **asked)
