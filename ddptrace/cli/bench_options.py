"""Options that several benchmarks share, and the code that runs a benchmark and prints its sheet.

The arguments of an experiment's command are the fields of its `Options`, so that a command needs no further code.
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

SIZE: Final = click.FloatRange(min=0, min_open=True, max=1e6)
"""Of messages and buckets, in MB or MiB."""

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
HERE, PAPER, PRESET = "here", "paper", "ddptrace.preset"


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
