"""`ddptrace run PROGRAM`: what `python -m ddptrace.run` does, for a program that starts without torchrun.

This file only starts that command. Read `ddptrace/run/__main__.py` first.
"""

from __future__ import annotations

import os
import sys

import click


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--out", metavar="DIR", help="Run directory.  [default: run]")
@click.option("--overwrite", is_flag=True, help="Replace a run that DIR already holds.")
@click.option(
    "--profile",
    metavar="SCHEDULE",
    help="Record torch.profiler windows: WAIT,WARMUP,ACTIVE in steps, such as 5,1,3; or when-slow.",
)
@click.option("--keep", metavar="WHAT", help="Limit what each rank keeps on disk, as in size=64MB,every=10.")
@click.option("--name", help="Name of the run, in the report and in telemetry.")
@click.option("--tags", help="Words that tell the run from others, separated by commas.")
@click.option("--notes", metavar="TEXT", help="Text for the report's header.")
@click.option("-m", "is_module", is_flag=True, help="The program is a module, not a script.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    out: str | None,
    overwrite: bool,
    profile: str | None,
    keep: str | None,
    name: str | None,
    tags: str | None,
    notes: str | None,
    is_module: bool,
    program: str,
    args: tuple[str, ...],
) -> None:
    """Record an unchanged training script.

    PROGRAM is a script that trains in one process, or whose further ranks Lightning starts. Under a launcher, each
    rank runs `python -m ddptrace.run` instead, with the same options:

    \b
      torchrun --nproc-per-node 2 -m ddptrace.run --out run/ script.py args

    `python -m ddptrace.run --help` describes SCHEDULE and WHAT in full. An option that is left out comes from the
    environment (DDPTRACE_OUT, …), else from the table [tool.ddptrace] in pyproject.toml.
    """
    given = {"--out": out, "--profile": profile, "--keep": keep, "--name": name, "--tags": tags, "--notes": notes}
    options = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    switches = [flag for flag, is_on in {"--overwrite": overwrite, "-m": is_module}.items() if is_on]
    words = ["-m", "ddptrace.run", *options, *switches, program, *args]
    os.execv(sys.executable, [sys.executable, *words])  # the program takes over this process, its signals and its exit
