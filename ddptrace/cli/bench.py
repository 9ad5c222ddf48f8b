"""`ddptrace bench NAME`: what communication costs on the user's own machines, one command for each experiment."""

from __future__ import annotations

from typing import Any, Final

import click

from ddptrace.cli.bench_options import SIZE, cap, names, numbers, reducer, run, timed, trained

OPS: Final = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,send_recv"
EXPERIMENTS: Final = "ddptrace.bench.experiments"


@click.group()
def bench() -> None:
    """Measure what communication costs on this machine, or on your cluster."""


@bench.command()
@trained("--workload", "convnet", "resnet50")
@reducer()
@click.option(
    "--caps",
    "caps_mb",
    default="0,0.5,1,2,4,8,16,all",
    show_default=True,
    callback=names,
    help="Bucket caps in MiB. 0: one bucket for each parameter; all: one bucket.",
)
@timed("buckets")
def buckets(**asked: Any) -> None:
    """Measure step time and hidden communication over bucket caps, and name the best cap."""
    run(f"{EXPERIMENTS}.buckets", **asked)


@bench.command()
@click.option("--ops", default=OPS, show_default=True, callback=names, help="Collectives to measure.")
@click.option(
    "--sizes",
    default="1MB,4MB,16MB,64MB,256MB,1000MB",
    show_default=True,
    callback=names,
    help="Message sizes, decimal, kB to GB. Small ones, such as 4kB,64kB, show what a start costs.",
)
@timed("collectives", ranks="2,4,6")
def collectives(**asked: Any) -> None:
    """Measure time, algbw and busbw of collectives over size, and what starting one costs."""
    run(f"{EXPERIMENTS}.collectives", **asked)


@bench.command()
@trained("--models", "gpt,mlp", "resnet50,bert,gpt2-xl")
@click.option(
    "--caps",
    "caps_mb",
    default="25",
    show_default=True,
    callback=names,
    help="Bucket caps in MiB, for bucketed and ddp.",
)
@click.option(
    "--strategies",
    default="naive,flat,overlap,bucketed,ddp",
    show_default=True,
    callback=names,
    help="Strategies to compare. ddp is always measured, and again as null control.",
)
@timed("ddp")
def ddp(**asked: Any) -> None:
    """Compare step time and hidden communication of naive, flat, overlap and bucketed with stock DDP's."""
    run(f"{EXPERIMENTS}.ddp", **asked)


def _whole_floats(ctx: click.Context, parameter: click.Parameter, megabytes: float) -> int:
    """Return bytes that hold whole float32 elements, at least one."""
    return max(4, round(megabytes * 1e6) // 4 * 4)


@bench.command()
@click.option("--groups", default="1,2,4,8", show_default=True, callback=numbers, help="Numbers of groups at once.")
@click.option(
    "--mb",
    "nbytes",
    type=SIZE,
    default=4,
    show_default=True,
    callback=_whole_floats,
    help="Size of an all-reduce in MB.",
)
@click.option(
    "--calls", type=click.IntRange(min=1), default=4, show_default=True, help="All-reduces in each group and step."
)
@click.option(
    "--threads", default="1,2,4", show_default=True, callback=numbers, help="Gloo worker threads in each group."
)
@click.option(
    "--try",
    "environments",
    multiple=True,
    metavar="NAME=VALUE",
    default=("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo"),
    show_default=True,
    callback=lambda ctx, parameter, values: tuple(filter(None, values)),
    help='Environment variables of one more job. Repeat the option for more jobs; "": none.',
)
@timed("groups", ranks="16")
def groups(**asked: Any) -> None:
    """Measure all-reduces in many process groups at once: do cores, queues or the wire limit them?"""
    run(f"{EXPERIMENTS}.groups", **asked)


@bench.command()
@trained("--workload", "gpt", "bert")
@reducer()
@click.option(
    "--hooks",
    default="fp16,bf16,PowerSGD,quantization",
    show_default=True,
    callback=names,
    help="Communication hooks to compare with none.",
)
@cap(4)
@timed("hooks")
def hooks(**asked: Any) -> None:
    """Compare bytes, step time and gradient error of compressing communication hooks with no hook."""
    run(f"{EXPERIMENTS}.hooks", **asked)


@bench.command("no-sync")
@reducer()
@click.option(
    "--counts",
    default="1,2,4,8",
    show_default=True,
    callback=numbers,
    help="Numbers of micro-batches for each synchronisation; must include 1.",
)
@click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Micro-batches of each rank for the loss curve, rounded down to whole updates of every count.",
)
@timed("no-sync")
def no_sync(**asked: Any) -> None:
    """Measure time per sample, and loss after the same samples, with several micro-batches for each synchronisation."""
    run(f"{EXPERIMENTS}.no_sync", **asked)


@bench.command("round-robin")
@trained("--workload", "mlp", "bert")
@click.option(
    "--groups", default="1,3,5", show_default=True, callback=numbers, help="Numbers of groups; must include 1."
)
@cap(1)
@timed("round-robin")
def round_robin(**asked: Any) -> None:
    """Measure step time with 1, 3 and 5 process groups that take turns: does one group fill the link?"""
    run(f"{EXPERIMENTS}.round_robin", **asked)


@bench.command()
@trained("--workload", "gpt", "resnet50")
@cap(25)
@timed("scale", ranks="1,2,4")
def scale(**asked: Any) -> None:
    """Measure samples per second over workers, each with its own batch: the efficiency of weak scaling."""
    run(f"{EXPERIMENTS}.scale", **asked)


@bench.command()
@trained("--workload", "gpt", "bert")
@cap(4)
@timed("unused")
def unused(**asked: Any) -> None:
    """Measure what find_unused_parameters costs in a step, and what the cost is made of."""
    run(f"{EXPERIMENTS}.unused", **asked)
