"""`ddptrace figures RUN`: write the report's figures to files, for a paper, a slide or a README."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.say import say
from ddptrace.errors import printable


@click.command()
@click.argument("run", nargs=-1, required=True)
@click.option(
    "--format", type=click.Choice(["svg", "png", "pdf"]), default="svg", show_default=True, help="Format of the files."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder to write to.  [default: RUN/analysis/figures]"
)
def figures(run: tuple[str, ...], format: str, output: Path | None) -> None:
    """Write the figures of a run's report to files.

    RUN is a run directory of ddptrace.trace, or any files and folders of torch.profiler traces. Drawing needs Chrome or
    Chromium, and kaleido: pip install 'ddptrace[images]'.
    """
    from ddptrace.analyzer import analyze
    from ddptrace.cli.analyze import folder_for, progress, unlinked
    from ddptrace.errors import DdptraceError
    from ddptrace.figures import every, write_images

    with progress() as tell:
        result = analyze(run, progress=tell)
    found = every(result)
    if not found:
        raise DdptraceError(f"{', '.join(run)} holds nothing to draw: see what was recorded with `ddptrace analyze`")
    for path in write_images(found, output or unlinked(folder_for(run) / "figures"), format):
        say(printable(path))
