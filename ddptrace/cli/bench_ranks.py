"""`ddptrace bench ranks`: what analyzing a run of many ranks costs."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import numbers, show


@click.command()
@click.option("--workload", default="convnet", show_default=True, help="Model to train.")
@click.option("--to", default="32,64,128,256", show_default=True, callback=numbers, help="Numbers of ranks to make.")
@click.option("--steps", type=click.IntRange(min=2), default=20, show_default=True, help="Recorded, on 2 ranks.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Repeats.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default="run/bench/ranks", show_default=True,
    help="Folder for the tables, the page and the runs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else.")
def ranks(workload: str, to: tuple[int, ...], steps: int, rounds: int, out: Path, as_json: bool) -> None:
    """Time and memory of analyzing and merging many ranks, made of two real ones, and how they grow."""
    from ddptrace.bench.ranks.experiment import Options

    show("ranks", Options(workload=workload, to=to, steps=steps, rounds=rounds), out, as_json)
