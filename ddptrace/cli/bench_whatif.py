"""`ddptrace bench whatif`: how far off are predictions from one recorded run?"""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import names


@click.command()
@click.option("--rates", default="200mbit,500mbit,1gbit,loopback", show_default=True, callback=names,
              help="Of the link between two hosts (needs root), or loopback.")  # fmt: skip
@click.option("--models", default="mlp,convnet,gpt", show_default=True, callback=names)
@click.option("--caps", default="0.1,0.5,1,2,5,10,25,100", show_default=True, callback=names, help="In MiB.")
@click.option(
    "--no-sync", "backwards", default="1,2,4,8", show_default=True, callback=names, help="Backwards an update."
)
@click.option("--fp16/--no-fp16", default=True, show_default=True, help="Try the hook too.")
@click.option(
    "--turns", type=click.IntRange(min=1), default=10, show_default=True, help="Of two steps of each setting."
)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default="run/bench/whatif", show_default=True,
    help="Folder for the tables, the page and the traced runs.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else.")
def whatif(
    rates: tuple[str, ...], models: tuple[str, ...], caps: tuple[str, ...], backwards: tuple[str, ...], fp16: bool,
    turns: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Predict each setting's step from a recording at another one, and hold it against what it takes."""
    from ddptrace.bench.asked import caps as caps_of
    from ddptrace.bench.whatif.experiment import Options, bench_whatif
    from ddptrace.render.sheet import markdown

    counts = tuple(int(number) for number in caps_of(backwards).values())
    options = Options(rates, models, tuple(caps_of(caps).values()), counts, fp16, turns)
    sheet = bench_whatif(options, out, lambda text: click.echo(text, err=True))
    click.echo((out / f"{sheet.name}.json").read_text() if as_json else markdown(sheet))
    click.echo(f"page {out / sheet.name}.html, traced runs {out / 'runs'}", err=True)
