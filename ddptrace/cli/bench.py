"""`ddptrace bench NAME`: measure what communication costs on the user's own machines, one command per experiment."""

from __future__ import annotations

from typing import Any, Final

import click

from ddptrace.cli.bench_options import SIZE, cap, names, numbers, reducer, run, timed, trained

OPS: Final = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,send_recv"
EXPERIMENTS: Final = "ddptrace.bench.experiments"


@click.group()
def bench() -> None:
    """Measure what communication costs on your machine or cluster."""


@bench.command()
@trained("--workload", "convnet", "resnet50")
@reducer()
@click.option(
    "--caps",
    "caps_mb",
    default="0,0.5,1,2,4,8,16,all",
    show_default=True,
    callback=names,
    help="Bucket caps in MiB; 0 makes one bucket per parameter, all makes one bucket.",
)
@timed("buckets")
def buckets(**asked: Any) -> None:
    """Measure step time by bucket cap, and find the best cap.

    Also measures how much communication each cap hides.
    """
    run(f"{EXPERIMENTS}.buckets", **asked)


@bench.command()
@click.option("--ops", default=OPS, show_default=True, callback=names, help="Collectives to measure.")
@click.option(
    "--sizes",
    default="1MB,4MB,16MB,64MB,256MB,1000MB",
    show_default=True,
    callback=names,
    help="Message sizes in kB, MB or GB. Small ones, such as 4kB,64kB, show the cost of starting a collective.",
)
@timed("collectives", ranks="2,4,6")
def collectives(**asked: Any) -> None:
    """Measure time and bandwidth of collectives by message size.

    Also measures the cost of starting a collective. Bandwidths are algbw and busbw as in nccl-tests.
    """
    run(f"{EXPERIMENTS}.collectives", **asked)


@bench.command()
@trained("--models", "gpt,mlp", "resnet50,bert,gpt2-xl")
@click.option(
    "--caps",
    "caps_mb",
    default="25",
    show_default=True,
    callback=names,
    help="Bucket caps in MiB of the strategies bucketed and ddp.",
)
@click.option(
    "--strategies",
    default="naive,flat,overlap,bucketed,ddp",
    show_default=True,
    callback=names,
    help="Strategies to compare. ddp is always measured, and once more as the null control.",
)
@timed("ddp")
def ddp(**asked: Any) -> None:
    """Compare ways of gradient reduction with stock DDP.

    Compares step time and hidden communication of naive, flat, overlapped and bucketed reduction.
    """
    run(f"{EXPERIMENTS}.ddp", **asked)


def _whole_floats(ctx: click.Context, parameter: click.Parameter, megabytes: float) -> int:
    """Return bytes that hold whole float32 elements, at least one."""
    return max(4, round(megabytes * 1e6) // 4 * 4)


@bench.command()
@click.option(
    "--groups",
    default="1,2,4,8",
    show_default=True,
    callback=numbers,
    help="Numbers of process groups at the same time.",
)
@click.option(
    "--mb",
    "nbytes",
    type=SIZE,
    default=4,
    show_default=True,
    callback=_whole_floats,
    help="Size of each all-reduce in MB.",
)
@click.option(
    "--calls", type=click.IntRange(min=1), default=4, show_default=True, help="All-reduces per group and step."
)
@click.option("--threads", default="1,2,4", show_default=True, callback=numbers, help="Gloo worker threads per group.")
@click.option(
    "--try",
    "environments",
    multiple=True,
    metavar="NAME=VALUE",
    default=("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo"),
    show_default=True,
    callback=lambda ctx, parameter, values: tuple(filter(None, values)),
    help='Environment variables of one additional job. Repeatable; "" runs no additional job.',
)
@timed("groups", ranks="16")
def groups(**asked: Any) -> None:
    """Measure all-reduces in many process groups at once.

    Shows whether cores, queues or the wire limit them.
    """
    run(f"{EXPERIMENTS}.groups", **asked)


@bench.command()
@trained("--workload", "gpt", "bert")
@reducer()
@click.option(
    "--hooks",
    default="fp16,bf16,PowerSGD,quantization",
    show_default=True,
    callback=names,
    help="Communication hooks to compare.",
)
@cap(4)
@timed("hooks")
def hooks(**asked: Any) -> None:
    """Compare training with and without compressing hooks.

    Compares bytes, step time and gradient error of communication hooks.
    """
    run(f"{EXPERIMENTS}.hooks", **asked)


@bench.command("no-sync")
@reducer()
@click.option(
    "--counts",
    default="1,2,4,8",
    show_default=True,
    callback=numbers,
    help="Numbers of micro-batches per synchronisation; must include 1.",
)
@click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Micro-batches per rank for the loss curve, rounded down to a multiple of every count.",
)
@timed("no-sync")
def no_sync(**asked: Any) -> None:
    """Measure gradient accumulation with no_sync().

    Measures time per sample, and loss after equal numbers of samples, by micro-batches per synchronisation.
    """
    run(f"{EXPERIMENTS}.no_sync", **asked)


@bench.command("round-robin")
@trained("--workload", "mlp", "bert")
@click.option(
    "--groups", default="1,3,5", show_default=True, callback=numbers, help="Numbers of process groups; must include 1."
)
@cap(1)
@timed("round-robin")
def round_robin(**asked: Any) -> None:
    """Measure step time with process groups that take turns.

    Shows whether a single group fills the link.
    """
    run(f"{EXPERIMENTS}.round_robin", **asked)


@bench.command()
@trained("--workload", "gpt", "resnet50")
@cap(25)
@timed("scale", ranks="1,2,4")
def scale(**asked: Any) -> None:
    """Measure samples per second by number of ranks.

    Each rank has its own batch of constant size: weak scaling.
    """
    run(f"{EXPERIMENTS}.scale", **asked)


@bench.command()
@trained("--workload", "gpt", "bert")
@cap(4)
@timed("unused")
def unused(**asked: Any) -> None:
    """Measure the cost of find_unused_parameters.

    Measures the cost per step, and of which parts it consists.
    """
    run(f"{EXPERIMENTS}.unused", **asked)
