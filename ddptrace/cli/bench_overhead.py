"""`ddptrace bench overhead`: what tracing costs a training step."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import common, names, show


@click.command()
@click.option("--workload", default="gpt", show_default=True, help="Model to train.")
@click.option(
    "--modes", callback=names, default="all",
    help="Some of those in the table, and: exporting thread, companion (with --steps 30).  [default: all in the table]",
)  # fmt: skip
@common("overhead", rounds=20)
def overhead(
    workload: str, modes: tuple[str, ...], ranks: tuple[int, ...], backend: str | None, rounds: int, steps: int,
    warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Step time under ddptrace and other ways to watch it, against untraced, with a null control."""
    from ddptrace.bench.overhead.experiment import MODES, Options
    from ddptrace.bench.timing import Repeats

    asked = tuple(MODES) if modes == ("all",) else modes
    show("overhead", Options(ranks, backend, workload, asked, Repeats(rounds, steps, warmup)), out, as_json)
