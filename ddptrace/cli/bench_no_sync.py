"""`ddptrace bench no-sync`: what synchronising less often wins and costs."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import common, numbers, show


@click.command("no-sync")
@click.option("--reducer", type=click.Choice(["ddp", "bucketed"]), default="ddp", show_default=True)
@click.option(
    "--counts", default="1,2,4,8", show_default=True, callback=numbers,
    help="Micro-batches for each synchronisation; 1 is needed.",
)  # fmt: skip
@click.option(
    "--micro-batches", type=click.IntRange(min=1), default=256, show_default=True,
    help="Of each rank, trained on for the loss curve; down to whole updates of every count.",
)  # fmt: skip
@common("no-sync")
def no_sync(
    reducer: str, counts: tuple[int, ...], micro_batches: int, ranks: tuple[int, ...], backend: str | None, rounds: int,
    steps: int, warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Time per sample with 1, 2, 4, 8 micro-batches a synchronisation, and the loss after the same samples."""
    from ddptrace.bench.no_sync.experiment import Options
    from ddptrace.bench.timing import Repeats

    repeats = Repeats(rounds, steps, warmup)
    show("no_sync", Options(ranks, backend, reducer, counts, micro_batches, repeats), out, as_json)
