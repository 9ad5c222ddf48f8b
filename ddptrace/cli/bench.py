"""`ddptrace bench NAME`: measures what communication costs on the user's own machines, one command per experiment.

First come the options that several commands share, and what runs an experiment and prints its sheet. The arguments of a
command are the fields of its experiment's `Options`, so that a command needs no further code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ddptrace.errors import needing_torch

if TYPE_CHECKING:
    from ddptrace.render.sheet import Sheet

OPS: Final = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,send_recv"
EXPERIMENTS: Final = "ddptrace.bench.experiments"
SIZE: Final = click.FloatRange(min=0, min_open=True, max=1e6)
"""Of messages and buckets, in MB or MiB."""
HERE, PAPER, PRESET = "here", "paper", "ddptrace.preset"

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def names(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Read a list as people type it: `1,5,25`."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise click.BadParameter("give at least one value, such as 1,2,4")
    return found


def numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Read a list of whole numbers above zero."""
    found = names(ctx, parameter, value)
    if not all(part.isdecimal() and int(part) for part in found):
        raise click.BadParameter(f"{value!r} is not a list of whole numbers above zero, such as 1,2,4")
    return tuple(map(int, found))


def timed(name: str, ranks: str = "2", rounds: int = 7) -> Decorator:
    """Add the options of every experiment. Under torchrun its ranks are used instead of --ranks."""
    return _all_of(
        click.option(
            "--ranks",
            default=ranks,
            show_default=True,
            callback=numbers,
            help="Numbers of ranks to start; at most 16 per core.",
        ),
        click.option(
            "--backend",
            type=click.Choice(["gloo", "nccl"]),
            help="Backend of torch.distributed.  [default: nccl if each rank has a GPU, else gloo]",
        ),
        click.option(
            "--rounds", type=click.IntRange(min=1), default=rounds, show_default=True, help="Number of measured rounds."
        ),
        click.option(
            "--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Timed steps per round."
        ),
        click.option(
            "--warmup",
            type=click.IntRange(min=0),
            default=2,
            show_default=True,
            help="Untimed steps before the timed ones.",
        ),
        written(name),
    )


def written(name: str) -> Decorator:
    """Add --out and --json, the options of every benchmark that writes a sheet."""
    return _all_of(
        click.option(
            "-o",
            "--out",
            type=click.Path(path_type=Path),
            default=f"run/bench/{name}",
            show_default=True,
            help="Folder for tables, page and traced runs.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON and nothing else."),
    )


def trained(flag: str, here: str, paper: str) -> Decorator:
    """Add --preset, and `flag` that names workloads: by default `here` for one machine, or `paper` for a cluster.

    The command gets one argument of the flag's name: a name, or a tuple of names if the flag is a plural (--models).
    """
    several = flag.endswith("s")

    def chosen(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | tuple[str, ...]:
        asked = value or {HERE: here, PAPER: paper}[ctx.meta[PRESET]]
        return names(ctx, parameter, asked) if several else asked

    models = "Models to train" if several else "Model to train"
    return _all_of(
        click.option(
            "--preset",
            type=click.Choice([HERE, PAPER]),
            default=HERE,
            show_default=True,
            is_eager=True,
            expose_value=False,
            callback=lambda ctx, parameter, value: ctx.meta.update({PRESET: value}),
            help="here: models that fit this machine; paper: models that papers measure on GPU clusters.",
        ),
        click.option(flag, callback=chosen, help=f"{models}.  [default: {here}; preset paper: {paper}]"),
    )


def reducer() -> Decorator:
    """Add --reducer."""
    return click.option(
        "--reducer",
        type=click.Choice(["ddp", "bucketed"]),
        default="ddp",
        show_default=True,
        help="Reducer: stock DDP or BucketedDataParallel.",
    )


def cap(default: float) -> Decorator:
    """Add --cap."""
    return click.option("--cap", "cap_mb", type=SIZE, default=default, show_default=True, help="Bucket cap in MiB.")


def _all_of(*options: Decorator) -> Decorator:
    """Return one decorator that adds the options, in this order on the help page."""

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def run(module: str, out: Path, as_json: bool, *, rounds: int, steps: int, warmup: int, **asked: Any) -> None:
    """Run the experiment in a module with the options of its command, and print its sheet."""
    with needing_torch("ddptrace bench"):
        from ddptrace.bench.conduct import experiment_in
        from ddptrace.bench.experiment import Repeats

    show(module, experiment_in(module).options(repeats=Repeats(rounds, steps, warmup), **asked), out, as_json)


def show(module: str, options: Any, out: Path, as_json: bool) -> None:
    """Run the experiment in a module, and print its sheet. Ranks that others started print nothing, but rank 0."""
    from ddptrace.bench.conduct import conduct

    sheet = conduct(module, options, out)
    if sheet is not None:
        print_sheet(sheet, out, as_json)
    if "RANK" in os.environ:
        os._exit(0)  # a rank among others: Gloo now and then aborts while Python shuts down


def print_sheet(sheet: Sheet, out: Path, as_json: bool) -> None:
    """Print a sheet's tables, or its JSON, and name its files."""
    from ddptrace.render.sheet import markdown

    click.echo((out / f"{sheet.name}.json").read_text() if as_json else markdown(sheet))
    runs = f", traced runs {out / 'runs'}" if (out / "runs").is_dir() else ""
    click.echo(f"page {out / sheet.name}.html{runs}", err=True)


# The commands ---------------------------------------------------------------------------------------------------------


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
