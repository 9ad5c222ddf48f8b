"""`ddptrace bench unused`: the cost of find_unused_parameters."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import SIZE, common, show, trained


@click.command()
@trained("--workload", "gpt", "bert")
@click.option("--cap", type=SIZE, default=4, show_default=True, help="Of buckets, in MiB.")
@common("unused")
def unused(
    workload: str, cap: float, ranks: tuple[int, ...], backend: str | None, rounds: int, steps: int, warmup: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Step time with find_unused_parameters against without, and what the difference is made of."""
    from ddptrace.bench.timing import Repeats
    from ddptrace.bench.unused.experiment import Options

    show("unused", Options(ranks, backend, workload, cap, Repeats(rounds, steps, warmup)), out, as_json)
