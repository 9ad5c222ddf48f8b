"""`ddptrace figures RUN`: the report's pictures as files, for a paper, a slide or a README."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.say import say
from ddptrace.errors import printable


@click.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--format", type=click.Choice(["svg", "png", "pdf"]), default="svg", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder.  [default: RUN/analysis/figures]")
def figures(run: tuple[str, ...], format: str, output: Path | None) -> None:
    """Write each figure of RUN's report to a file of its own.

    RUN is a directory that ddptrace.trace wrote, or any files and folders of torch.profiler traces. Chrome or Chromium
    draws them, and kaleido drives it: pip install 'ddptrace[images]'.
    """
    from ddptrace.analyzer import analyze
    from ddptrace.cli.analyze import folder_for, progress, unlinked
    from ddptrace.errors import DdptraceError
    from ddptrace.figures import every, write_images

    with progress() as tell:
        result = analyze(run, progress=tell)
    found = every(result)
    if not found:
        raise DdptraceError(f"{', '.join(run)} holds nothing to draw: `ddptrace analyze` tells what was recorded there")
    for path in write_images(found, output or unlinked(folder_for(run) / "figures"), format):
        say(printable(path))
