"""`ddptrace bench round-robin`: step time over the number of process groups that take turns."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import SIZE, common, numbers, show, trained


@click.command("round-robin")
@trained("--workload", "mlp", "bert")
@click.option(
    "--groups", default="1,3,5", show_default=True, callback=numbers, help="How many take turns; 1 is needed."
)
@click.option("--cap", type=SIZE, default=1, show_default=True, help="Of buckets, in MiB.")
@common("round-robin")
def round_robin(
    workload: str, groups: tuple[int, ...], cap: float, ranks: tuple[int, ...], backend: str | None, rounds: int,
    steps: int, warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Step time with 1, 3 and 5 process groups in turn: does one group fill the link?"""
    from ddptrace.bench.round_robin.experiment import Options
    from ddptrace.bench.timing import Repeats

    repeats = Repeats(rounds, steps, warmup)
    show("round_robin", Options(ranks, backend, workload, groups, cap, repeats), out, as_json)
