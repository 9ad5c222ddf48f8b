"""The commands: `python -m benchmarks NAME`, in the root of the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ddptrace.cli import Commands
from ddptrace.cli.bench import names, numbers, print_sheet, run, show, timed, written

PLANTS = "data,forward,backward,optimizer,gc,link,half-core"
COUNT = click.IntRange(min=1)


class Benchmarks(Commands):
    """Ends a user's mistake as `ddptrace` does, with one line and exit code 1."""

    list_commands = click.Group.list_commands
    get_command = click.Group.get_command


@click.group(cls=Benchmarks, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure what ddptrace costs, and how often it is right."""


@main.command()
@click.option("--workload", default="gpt", show_default=True, help="Model to train.")
@click.option("--strategy", default="ddp", show_default=True, help="How it is trained: ddp or fsdp2.")
@click.option(
    "--modes",
    callback=names,
    default="all",
    help="Modes to measure: those in the table, and `exporting thread` and `companion` (with --steps 30). "
    "[default: all in the table]",
)
@timed("overhead", rounds=20)
def overhead(modes: tuple[str, ...], **asked: Any) -> None:
    """Compare the step time under ddptrace, and under other ways to watch it, with untraced steps."""
    from benchmarks.overhead import MODES

    run("benchmarks.overhead", modes=tuple(MODES) if modes == ("all",) else modes, **asked)


@main.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--ranks", type=COUNT, default=8, show_default=True, help="Number of trace files to make from TRACE.")
@click.option("--mb", type=COUNT, default=100, show_default=True, help="Size of each file in MB, unpacked.")
@click.option("--hta/--no-hta", "with_hta", default=True, help="Measure HTA too, which takes ten times as long.")
@click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else.")
def load(trace: Path, ranks: int, mb: int, with_hta: bool, as_json: bool) -> None:
    """Measure processor time, time and memory of reading traces made from TRACE, a trace of torch.profiler."""
    from benchmarks.load import bench_load, table

    if with_hta:
        from ddptrace.analysis.hta.compare import demand

        demand()
    found = bench_load(trace, ranks=ranks, nbytes=mb * 1_000_000, with_hta=with_hta, progress=say)
    click.echo(json.dumps(found.to_json_dict()) if as_json else table(found))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--ranks", type=COUNT, default=10_000, show_default=True, help="Number of ranks to make.")
def dumps(folder: Path | None, ranks: int) -> None:
    """Measure a diagnosis of the Flight Recorder dumps of many ranks, copied from FOLDER or from a simulated job.

    Fails unless exactly the ranks to blame are named."""
    from benchmarks.dumps import bench_dumps

    click.echo(bench_dumps(folder, ranks))


@main.command()
@click.option("--workload", default="convnet", show_default=True, help="Model to train.")
@click.option("--to", default="32,64,128,256", show_default=True, callback=numbers, help="Numbers of ranks to make.")
@click.option("--steps", type=click.IntRange(min=2), default=20, show_default=True, help="Steps to record on 2 ranks.")
@click.option("--rounds", type=COUNT, default=3, show_default=True, help="How often to analyze each run.")
@written("ranks")
def ranks(out: Path, as_json: bool, **asked: Any) -> None:
    """Measure time and memory of analyzing many ranks, which are made from two recorded ones."""
    from benchmarks.ranks import Options

    show("benchmarks.ranks", Options(**asked), out, as_json)


@main.command()
@click.option("--ranks", default="2,4", show_default=True, callback=numbers, help="Numbers of ranks; runs take turns.")
@click.option("--runs", type=click.IntRange(min=0), default=10, show_default=True, help="Number of runs of each plant.")
@click.option(
    "--healthy",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="Number of runs without a plant, for each number of ranks.",
)
@click.option("--plants", default=PLANTS, show_default=True, callback=names, help="Causes that make one rank late.")
@click.option("--steps", type=COUNT, default=200, show_default=True, help="Number of steps in each run.")
@click.option("--keep-runs", "keeps_runs", is_flag=True, help="Keep all traced runs, not only those judged wrong.")
@written("blame")
def blame(out: Path, as_json: bool, **asked: Any) -> None:
    """Make one rank late for a known cause: does the analysis name the rank, the cause and the cost?"""
    from benchmarks.blame import Options, bench_blame

    print_sheet(bench_blame(Options(**asked), out, say), out, as_json)


@main.command()
@click.option("--tries", type=COUNT, default=20, show_default=True, help="Number of comparisons of each kind.")
@click.option("--runs", type=COUNT, default=6, show_default=True, help="Number of runs on each side.")
@click.option("--steps", type=COUNT, default=60, show_default=True, help="Number of steps in each run.")
@click.option(
    "--deviations",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Size of the planted change, in standard deviations of plain runs.",
)
@click.option("--keep-runs", "keeps_runs", is_flag=True, help="Keep the traced runs.")
@written("diff")
def diff(out: Path, as_json: bool, **asked: Any) -> None:
    """Compare equal runs, and runs in which one bucket sends more: does the comparison call the right ones a change?"""
    from benchmarks.diff import Options, bench_diff

    print_sheet(bench_diff(Options(**asked), out, say), out, as_json)


@main.command()
@click.option(
    "--rates",
    default="200mbit,500mbit,1gbit,loopback",
    show_default=True,
    callback=names,
    help="Rates of the link between two hosts (needs root), or loopback.",
)
@click.option("--models", default="mlp,convnet,gpt", show_default=True, callback=names, help="Models to train.")
@click.option("--caps", default="0.1,0.5,1,2,5,10,25,100", show_default=True, callback=names, help="Caps in MiB.")
@click.option(
    "--no-sync",
    "backwards",
    default="1,2,4,8",
    show_default=True,
    callback=numbers,
    help="Numbers of backwards in an update.",
)
@click.option("--fp16/--no-fp16", default=True, show_default=True, help="Measure the fp16 hook too.")
@click.option("--turns", type=COUNT, default=10, show_default=True, help="Number of turns, two steps of each setting.")
@written("whatif")
def whatif(out: Path, as_json: bool, caps: tuple[str, ...], **asked: Any) -> None:
    """Predict each setting's step time from a recording of another setting, and compare it with the measured one."""
    from benchmarks.whatif import Options, bench_whatif
    from ddptrace.bench.experiment import caps as caps_of

    options = Options(caps_mb=tuple(caps_of(caps).values()), **asked)
    print_sheet(bench_whatif(options, out, say), out, as_json)


@main.command()
@click.option(
    "--rates",
    default="200mbit,500mbit,1gbit",
    show_default=True,
    callback=names,
    help="Rates of the link between two hosts (needs root), or loopback.",
)
@click.option("--turns", type=COUNT, default=10, show_default=True, help="Number of turns, two steps of each setting.")
@written("shards")
def shards(out: Path, as_json: bool, **asked: Any) -> None:
    """Predict FSDP2 settings from a recording of another setting, and compare time and memory with the measured."""
    from benchmarks.shards import Options, bench_shards

    print_sheet(bench_shards(Options(**asked), out, say), out, as_json)


def say(text: str) -> None:
    """Print progress, beside what a command prints as its result."""
    click.echo(text, err=True)


if __name__ == "__main__":
    from benchmarks.forks import ended_in_order

    with ended_in_order():
        main(prog_name="python -m benchmarks")
