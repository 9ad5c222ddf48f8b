"""`ddptrace bench buckets`: step time over bucket cap, the U-curve."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import common, names, show, trained


@click.command()
@trained("--workload", "convnet", "resnet50")
@click.option("--reducer", type=click.Choice(["ddp", "bucketed"]), default="ddp", show_default=True)
@click.option(
    "--caps", default="0,0.5,1,2,4,8,16,all", show_default=True, callback=names,
    help="In MiB; 0 is a bucket for each parameter, all one bucket.",
)  # fmt: skip
@common("buckets")
def buckets(
    workload: str, reducer: str, caps: tuple[str, ...], ranks: tuple[int, ...], backend: str | None, rounds: int,
    steps: int, warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Step time over bucket cap, with what is hidden at each: which cap is best here, and why."""
    from ddptrace.bench.buckets.experiment import Options
    from ddptrace.bench.timing import Repeats

    repeats = Repeats(rounds, steps, warmup)
    show("buckets", Options(ranks, backend, workload, reducer, caps, repeats), out, as_json)
