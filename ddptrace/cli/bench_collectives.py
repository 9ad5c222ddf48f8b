"""`ddptrace bench collectives`: time and bandwidth of collectives over sizes and numbers of ranks."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import common, names, show

OPS = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,send_recv"


@click.command()
@click.option("--ops", default=OPS, show_default=True, callback=names, help="Collectives to measure.")
@click.option(
    "--sizes", default="1MB,4MB,16MB,64MB,256MB,1000MB", show_default=True, callback=names,
    help="Decimal, kB to GB. Small ones, as in 4kB,64kB,1MB, tell what a start costs.",
)  # fmt: skip
@common("collectives", ranks="2,4,6")
def collectives(
    ops: tuple[str, ...], sizes: tuple[str, ...], ranks: tuple[int, ...], backend: str | None, rounds: int, steps: int,
    warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Time, algbw and busbw of collectives, what a start costs, and the time that a trace shows beside it."""
    from ddptrace.bench.collectives.experiment import Options
    from ddptrace.bench.timing import Repeats

    repeats = Repeats(rounds, steps, warmup)
    show("collectives", Options(ranks, backend, ops, sizes, repeats), out, as_json)
