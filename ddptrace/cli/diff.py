"""`ddptrace diff BEFORE AFTER`: what changed between two runs, or between two sides of several runs each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ddptrace.cli.say import say, say_json, show
from ddptrace.errors import printable

if TYPE_CHECKING:
    from ddptrace.analysis.diff.compare import Limit
    from ddptrace.analysis.diff.tables import Change, Diff

LIMIT_MET: Final = 3


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option(
    "--fail-on",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="Exit with code 3 if the change certainly exceeds LIMIT: step>5% (of the step in BEFORE), exposed>2ms, "
    "bucket>1ms; likewise for compute, comm, idle, backward, … Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON and nothing else.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for diff.html, diff.md and diff.json.")
@click.option("--junit", type=click.Path(path_type=Path), help="File for a JUnit report: one test for each --fail-on.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: one per processor]")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    metavar="N",
    help="First make N runs per side, alternating between the sides.",
)
@click.option(
    "--run-before", metavar="COMMAND", help="Command for --repeat that makes a BEFORE run in {run} or $DDPTRACE_OUT."
)
@click.option("--run-after", metavar="COMMAND", help="The same for an AFTER run.")
def diff(
    before: Path,
    after: Path,
    limits: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    junit: Path | None,
    jobs: int | None,
    repeat: int | None,
    run_before: str | None,
    run_after: str | None,
) -> None:
    """Show what changed between two runs, or two sets of runs.

    Compares the step, its parts, buckets and ranks, and the settings. BEFORE and AFTER are each a run directory, a
    folder of several, or a glob in quotes. With one run per side, diff shows how these two runs differ. With several
    (6 per side are best), it also shows whether the difference is larger than the variation from run to run. Make them
    in alternation:

    \b
      ddptrace diff before/ after/ --repeat 6 \\
        --run-before 'torchrun --nproc-per-node 2 -m ddptrace.run train.py' \\
        --run-after  'torchrun --nproc-per-node 2 -m ddptrace.run train.py --bucket-cap-mb 50'

    \b
    Exit code:  0  no limit of --fail-on is certainly exceeded
                1  a run cannot be read or made, or lacks the data for a limit of --fail-on
                3  a limit of --fail-on is certainly exceeded
    """
    from ddptrace.analysis.diff.compare import parse_limit
    from ddptrace.cli.analyze import progress
    from ddptrace.differ import diff as diff_runs

    asked = [parse_limit(text) for text in limits]
    if len({value is None for value in (repeat, run_before, run_after)}) > 1:
        raise click.UsageError("--repeat, --run-before and --run-after must be given together")
    if repeat is not None and run_before is not None and run_after is not None:
        from ddptrace.cli.in_turns import make_runs

        make_runs(repeat, {before: run_before, after: run_after}, lambda told: say(told, err=True))
    with progress("Reading runs") as tell:
        found = diff_runs(before, after, jobs=jobs, progress=tell)
    _show(found, output, as_json=as_json)
    exceeded = _exceeded(found, asked)
    if junit is not None:
        from ddptrace.render.diff.sheet import write_junit

        write_junit(found, exceeded, junit)
    if any(exceeded.values()):
        sys.exit(LIMIT_MET)


def _show(found: Diff, output: Path | None, *, as_json: bool) -> None:
    if output is not None:
        from ddptrace.render.diff.sheet import diff_sheet
        from ddptrace.render.sheet_page import write_sheet

        output.mkdir(parents=True, exist_ok=True)
        write_sheet(diff_sheet(found), found.to_json_dict(), output)
    if as_json:
        say_json(found.to_json_dict())
        return
    from ddptrace.render.diff.terminal import diff_text

    show(diff_text(found))
    if output is not None:
        say(f"\npage {printable(output / 'diff.html')}")


def _exceeded(found: Diff, limits: Sequence[Limit]) -> dict[str, list[Change]]:
    """Return by limit what certainly exceeds it, and print it."""
    from ddptrace.analysis.diff.compare import exceeding
    from ddptrace.render.diff.words import exceeded_words

    exceeded = {limit.text: exceeding(found, limit) for limit in limits}
    for text, rows in exceeded.items():
        if rows:
            say(exceeded_words(text, rows), err=True)
    return exceeded
