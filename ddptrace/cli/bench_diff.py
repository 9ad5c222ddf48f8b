"""`ddptrace bench diff`: is a change between runs found, and none where there is none?"""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--tries", type=click.IntRange(min=1), default=20, show_default=True, help="Of equal and of other sides.")
@click.option("--runs", type=click.IntRange(min=1), default=6, show_default=True, help="Of each side.")
@click.option("--steps", type=click.IntRange(min=1), default=60, show_default=True, help="Of each run.")
@click.option(
    "--deviations", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True,
    help="What is planted, in deviations of plain runs.",
)  # fmt: skip
@click.option("--keep-runs", "keeps_runs", is_flag=True, help="Keep the traced runs.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default="run/bench/diff", show_default=True,
    help="Folder for the tables, the page and the traced runs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else.")
def diff(tries: int, runs: int, steps: int, deviations: float, keeps_runs: bool, out: Path, as_json: bool) -> None:
    """Compare equal runs, and runs in which more is sent beside one bucket: what is called a change, and which is?"""
    from ddptrace.bench.diff.experiment import Options, bench_diff
    from ddptrace.render.sheet import markdown

    options = Options(tries, runs, steps, deviations, keeps_runs)
    sheet = bench_diff(options, out, lambda text: click.echo(text, err=True))
    click.echo((out / f"{sheet.name}.json").read_text() if as_json else markdown(sheet))
    click.echo(f"page {out / sheet.name}.html", err=True)
