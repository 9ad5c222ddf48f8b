"""`ddptrace hta FOLDER`: compare HTA's numbers for the same files with ours, and explain the differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddptrace.cli.say import say_json, show

if TYPE_CHECKING:
    from ddptrace.analysis.result import Result


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON and nothing else.")
def hta(folder: Path, as_json: bool) -> None:
    """Compare HTA's numbers with those of ddptrace.

    Runs HTA (pip install 'ddptrace[hta]') on the torch.profiler traces in FOLDER, and explains each difference.
    """
    from ddptrace.analysis.hta.compare import compare, demand
    from ddptrace.analyzer import analyze
    from ddptrace.cli.analyze import progress
    from ddptrace.errors import DdptraceError
    from ddptrace.render.hta import hta_text

    demand()
    with progress() as tell:
        result = analyze(folder, progress=tell)
    files = first_files(folder, result)
    if not files:
        raise DdptraceError(
            f"{folder} holds no profiler file, and HTA reads nothing else; record with ddptrace.trace(profile=...)"
        )
    report = compare(result, files)
    if as_json:
        say_json(report)
    else:
        show(hta_text(report))


def first_files(folder: Path, result: Result) -> dict[int, Path]:
    """Return the first readable profiler file of each rank: HTA takes one per rank."""
    from ddptrace.load.run import TracedRank, open_run

    read = {row.rank: row.file for row in result.ranks if row.file is not None}
    found: dict[int, Path] = {}
    for source in open_run([folder]).sources:
        if isinstance(source.what, TracedRank):
            rank, paths = source.what.file.rank, source.what.file.paths
        else:
            rank, paths = source.what.rank, tuple(source.what.folder.iterdir())
        found |= [(rank, path) for path in paths if path.name == read.get(rank)]
    return found
