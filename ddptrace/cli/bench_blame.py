"""`ddptrace bench blame`: is the rank that is late named, and why?"""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import names, numbers

PLANTS = "data,forward,backward,optimizer,gc,link,half-core"


@click.command()
@click.option("--ranks", default="2,4", show_default=True, callback=numbers, help="Processes; runs take turns.")
@click.option("--runs", type=click.IntRange(min=0), default=10, show_default=True, help="Of each plant.")
@click.option(
    "--healthy", type=click.IntRange(min=0), default=30, show_default=True, help="Runs of each number of ranks."
)
@click.option("--plants", default=PLANTS, show_default=True, callback=names, help="What is wrong with one rank.")
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Of each run.")
@click.option("--keep-runs", "keeps_runs", is_flag=True, help="Keep all traced runs, not only those judged wrong.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default="run/bench/blame", show_default=True,
    help="Folder for the tables, the page and the traced runs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else.")
def blame(
    ranks: tuple[int, ...], runs: int, healthy: int, plants: tuple[str, ...], steps: int, keeps_runs: bool, out: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Make one rank late for a known reason, run after run: is it named, for that, and at what it really costs?"""
    from ddptrace.bench.blame.experiment import Options, bench_blame
    from ddptrace.render.sheet import markdown

    options = Options(ranks, runs, healthy, plants, steps, keeps_runs)
    sheet = bench_blame(options, out, lambda text: click.echo(text, err=True))
    click.echo((out / f"{sheet.name}.json").read_text() if as_json else markdown(sheet))
    click.echo(f"page {out / sheet.name}.html, traced runs {out / 'runs'}", err=True)
