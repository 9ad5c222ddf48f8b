"""`ddptrace profile RUN`: ask a running job for a profiler window now."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.trace_options import MOST_STEPS


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_STEPS),
    default=3,
    show_default=True,
    metavar="N",
    help=f"Number of steps to profile, at most {MOST_STEPS}.",
)
def profile(run: Path, steps: int) -> None:
    """Have all ranks of a running job profile the same steps now.

    RUN is the run directory that the job writes. The job must not profile on a schedule. Some seconds pass until the
    ranks have agreed; profile then prints the steps. The job goes on, and `ddptrace analyze RUN` shows the window once
    these steps are over.
    """
    from ddptrace.cli.say import say
    from ddptrace.live.asking import ask_for_window
    from ddptrace.units import named

    promised = ask_for_window(run, steps)
    which = named("step", range(promised.first, promised.last + 1))
    who = "The rank" if promised.ranks == 1 else f"{promised.confirmed} of {promised.ranks} ranks"
    say(f"{who} will profile {which} when training comes there. Then: ddptrace analyze {run}")
