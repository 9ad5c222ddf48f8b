"""`ddptrace bench hooks`: compression by communication hooks."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import SIZE, common, names, show, trained


@click.command()
@trained("--workload", "gpt", "bert")
@click.option("--reducer", type=click.Choice(["ddp", "bucketed"]), default="ddp", show_default=True)
@click.option("--hooks", "asked", default="fp16,bf16,PowerSGD,quantization", show_default=True, callback=names)
@click.option("--cap", type=SIZE, default=4, show_default=True, help="Of buckets, in MiB.")
@common("hooks")
def hooks(
    workload: str, reducer: str, asked: tuple[str, ...], cap: float, ranks: tuple[int, ...], backend: str | None,
    rounds: int, steps: int, warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Bytes, step time and error of gradients with compressing communication hooks, against none."""
    from ddptrace.bench.hooks.experiment import Options
    from ddptrace.bench.timing import Repeats

    repeats = Repeats(rounds, steps, warmup)
    show("hooks", Options(ranks, backend, workload, reducer, asked, cap, repeats), out, as_json)
