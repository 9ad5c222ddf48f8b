"""`ddptrace bench ddp`: ways to average gradients beside stock DDP."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import common, names, show, trained


@click.command()
@trained("--models", "gpt,mlp", "resnet50,bert,gpt2-xl")
@click.option(
    "--caps", default="25", show_default=True, callback=names, help="In MiB, of the buckets of bucketed and ddp."
)
@click.option(
    "--strategies", default="naive,flat,overlap,bucketed,ddp", show_default=True, callback=names,
    help="Some of these; ddp is always measured, twice.",
)  # fmt: skip
@common("ddp")
def ddp(
    models: tuple[str, ...], caps: tuple[str, ...], strategies: tuple[str, ...], ranks: tuple[int, ...],
    backend: str | None, rounds: int, steps: int, warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Step time of naive, flat, overlap and bucketed beside stock DDP's, and how much communication each hides."""
    from ddptrace.bench.ddp.experiment import Options
    from ddptrace.bench.timing import Repeats

    show("ddp", Options(ranks, backend, models, caps, strategies, Repeats(rounds, steps, warmup)), out, as_json)
