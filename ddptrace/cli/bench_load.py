"""`ddptrace bench load TRACE`: what reading traces costs, beside HTA and beside mere unpacking."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(min=1), default=8, show_default=True, help="Trace files to make of TRACE.")
@click.option("--mb", type=click.IntRange(min=1), default=100, show_default=True, help="Size of each, unpacked.")
@click.option("--hta/--no-hta", "with_hta", default=True, help="Measure HTA too, which takes ten times as long.")
@click.option("--json", "as_json", is_flag=True, help="Print every measurement as JSON, and nothing else.")
def load(trace: Path, ranks: int, mb: int, with_hta: bool, as_json: bool) -> None:
    """Measure reading on traces made of TRACE, a real one: processor time, time and memory."""
    import json

    from ddptrace.bench.load.experiment import bench_load, table

    if with_hta:
        from ddptrace.analysis.hta.compare import demand

        demand()
    found = bench_load(
        trace, ranks=ranks, nbytes=mb * 1_000_000, with_hta=with_hta, progress=lambda text: click.echo(text, err=True)
    )
    click.echo(json.dumps(found.to_json_dict()) if as_json else table(found))
