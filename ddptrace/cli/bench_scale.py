"""`ddptrace bench scale`: weak scaling over workers."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import SIZE, common, show, trained


@click.command()
@trained("--workload", "gpt", "resnet50")
@click.option("--cap", type=SIZE, default=25, show_default=True, help="Of buckets, in MiB.")
@common("scale", ranks="1,2,4")
def scale(
    workload: str, cap: float, ranks: tuple[int, ...], backend: str | None, rounds: int, steps: int, warmup: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Samples per second over workers, each with a batch of its own: how much of each further worker is left."""
    from ddptrace.bench.scale.experiment import Options
    from ddptrace.bench.timing import Repeats

    show("scale", Options(ranks, backend, workload, cap, Repeats(rounds, steps, warmup)), out, as_json)
