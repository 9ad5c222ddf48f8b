"""What the benchmarks of training have in common on the command line, and how their findings are shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from ddptrace.bench.conduct import Options
    from ddptrace.render.sheet import Sheet

SIZE: Final = click.FloatRange(min=0, min_open=True, max=1e6)
"""Of messages and buckets, in MB or MiB."""

Command = TypeVar("Command", bound=Callable[..., Any])
HERE, PAPER, PRESET = "here", "paper", "ddptrace.preset"


def common(name: str, ranks: str = "2", rounds: int = 7) -> Callable[[Command], Command]:
    """--ranks, --backend, --rounds, --steps, --warmup and --out. Under torchrun its ranks are used instead."""
    return _all_of(
        click.option("--ranks", default=ranks, show_default=True, callback=numbers, help="Processes, up to 16 a core."),
        click.option("--backend", type=click.Choice(["gloo", "nccl"]), help="[default: nccl if ranks have GPUs]"),
        click.option("--rounds", type=click.IntRange(min=1), default=rounds, show_default=True, help="Repeats."),
        click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Timed in each round."),
        click.option("--warmup", type=click.IntRange(min=0), default=2, show_default=True, help="Untimed, before."),
        written(name),
    )


def written(name: str) -> Callable[[Command], Command]:
    """--out and --json, of every benchmark that writes a sheet."""
    return _all_of(
        click.option(
            "-o",
            "--out",
            type=click.Path(path_type=Path),
            default=f"run/bench/{name}",
            show_default=True,
            help="Folder for the tables, the page and the traced runs.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else."),
    )


def _all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def trained(flag: str, here: str, paper: str) -> Callable[[Command], Command]:
    """--preset, and `flag` that names workloads: `here` for this machine, `paper` for a cluster, or what is asked for.

    The command gets one argument of the flag's name: a name, or where the flag is a plural (--models) a tuple of names.
    """
    several = flag.endswith("s")

    def chosen(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | tuple[str, ...]:
        asked = value or {HERE: here, PAPER: paper}[ctx.meta[PRESET]]
        return names(ctx, parameter, asked) if several else asked

    preset = click.option(
        "--preset", type=click.Choice([HERE, PAPER]), default=HERE, show_default=True, is_eager=True,
        expose_value=False, callback=lambda ctx, parameter, value: ctx.meta.update({PRESET: value}),
        help="Sizes for this machine, or those that papers measure, for a cluster with GPUs.",
    )  # fmt: skip
    models = "Models to train" if several else "Model to train"
    what = click.option(flag, callback=chosen, help=f"{models}.  [default: {here}; preset paper: {paper}]")
    return lambda command: preset(what(command))


def names(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """A list as people type it: `1,5,25`."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise click.BadParameter("give at least one, as in 1,2,4")
    return found


def numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers above zero."""
    found = names(ctx, parameter, value)
    if not all(part.isdecimal() and int(part) for part in found):
        raise click.BadParameter(f"{value!r} is no list of whole numbers above zero, as in 1,2,4")
    return tuple(map(int, found))


def show(experiment: str, options: Options, out: Path, as_json: bool) -> None:
    """Conduct the benchmark, print its tables, and say where the page is. Silent on ranks that others started.

    `experiment`: its folder in ddptrace.bench, or the module that holds it.
    """
    from ddptrace.bench.conduct import conduct

    module = experiment if "." in experiment else f"ddptrace.bench.{experiment}.experiment"
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
