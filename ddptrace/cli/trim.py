"""`ddptrace trim PATH`: profiler files that hold only some steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from ddptrace.trim.trim import Trimmed

STEPS: Final = re.compile(r"(\d{1,15})(?:\.\.(\d{1,15}))?")
NAMED: Final = 5


def _range(ctx: click.Context, parameter: click.Parameter, said: str | None) -> tuple[int, int] | None:
    if said is None:
        return None
    found = STEPS.fullmatch(said)
    first, last = (int(found[1]), int(found[2] or found[1])) if found and said.isascii() else (1, 0)
    if first > last:
        raise click.BadParameter(f"{said!r} is no range of steps; give one as 10, or several as 10..12")
    return first, last


@click.command()
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--steps", metavar="FIRST..LAST", callback=_range, help="The steps to keep, such as 10..12, or 10.")
@click.option(
    "--around",
    nargs=2,
    metavar="bucket N",
    type=(click.Choice(["bucket"]), click.IntRange(min=0)),
    help="Keep the step in which gradient bucket N is exposed for longest.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File or folder to write.  [default: beside the input]"
)
def trim(path: str, steps: tuple[int, int] | None, around: tuple[str, int] | None, output: Path | None) -> None:
    """Write a smaller profiler file that holds only some steps.

    Takes a file of torch.profiler, a folder with the files of all ranks, or a run directory whose job was profiled. The
    events that stay are written as they were; Perfetto and `ddptrace analyze` read the smaller files as they read the
    larger ones. Nothing is changed in place.
    """
    from ddptrace.cli.analyze import progress
    from ddptrace.cli.say import say
    from ddptrace.schema import run_path
    from ddptrace.trim.trim import step_of_bucket
    from ddptrace.trim.trim import trim as trim_steps

    if (steps is None) == (around is None):
        raise click.UsageError("give either --steps 10..12 or --around bucket 7")
    place = run_path(path)
    with progress() as tell:
        if around is not None:
            step = step_of_bucket(place, around[1], tell)
            steps = step, step
        assert steps is not None
        trimmed = trim_steps(place, *steps, output, tell)
    for line in _lines(trimmed):
        say(line)


def _lines(trimmed: Trimmed) -> Iterator[str]:
    from ddptrace.units import counted, named, size

    kept, seen = (sum(getattr(file, name) for file in trimmed.files) for name in ("kept", "seen"))
    new, old = (sum(getattr(file, name) for file in trimmed.files) for name in ("nbytes", "source_nbytes"))
    ranks = counted(len({file.rank for file in trimmed.files}), "rank")
    asked = [step for step in trimmed.steps if trimmed.asked[0] <= step <= trimmed.asked[1]]
    lead = [step for step in trimmed.steps if step < trimmed.asked[0]]
    yield f"{trimmed.place}: {named('step', asked)} of {ranks}, {size(new)} instead of {size(old)}"
    yield f"  left out: {seen - kept:,} of {counted(seen, 'event')}"
    if lead:
        yield f"  {named('step', lead)} came along, because {named('step', asked[:1])} begins where its work ends"
    if not trimmed.numbered:
        yield "  the file does not number its steps: ddptrace counts them, and in the smaller file from 0 again"
    if trimmed.others:
        names = _some([one.name for one in trimmed.others])
        yield f"  {counted(len(trimmed.others), 'file')} without these steps: {names}"
    if trimmed.ranks_without:
        yield f"  without these steps: {named('rank', trimmed.ranks_without)}"
    if trimmed.records:
        yield "  the files have no records of ddptrace, and the profiler's own numbers of steps"
    for finding in trimmed.findings:
        yield f"  {finding.where}: {finding.message}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
