"""`ddptrace nccl PATH...`: which algorithm, protocol and channels NCCL used, beside bandwidth."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path(path_type=Path))
@click.option(
    "--run", type=click.Path(path_type=Path), help="Run or profiler traces of the same job, for their bandwidth."
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON and nothing else.")
def nccl(paths: tuple[Path, ...], run: Path | None, as_json: bool) -> None:
    """Show how NCCL carried out its collectives, by function and size.

    Reads logs of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,TUNING (NCCL 2.24 and newer name algorithm, protocol and
    channels there), and files of NCCL Inspector, which has times and bandwidth. Both may lie in one folder.
    """
    from ddptrace.analysis.collectives.nccl import nccl_rows
    from ddptrace.analyzer import analyze
    from ddptrace.cli.say import say, say_json
    from ddptrace.load.nccl_files import read_files
    from ddptrace.render.collectives import nccl_lines

    told, unreadable = read_files(paths)
    rows = nccl_rows(told, () if run is None else analyze(run).collectives)
    if as_json:
        say_json(rows)
        return
    for line in nccl_lines(rows, run is not None):
        say(line)
    if unreadable:
        say(f"Cannot be read: {', '.join(unreadable)}", err=True)
