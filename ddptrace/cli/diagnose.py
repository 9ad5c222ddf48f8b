"""`ddptrace diagnose RUN`: what a job that hangs, crashed or was killed was doing, also while it runs; from its records
or from dumps of torch's Flight Recorder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ddptrace.cli.say import say_json, show


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
def diagnose(run: Path, as_json: bool) -> None:
    """Show what a hanging, crashed or running job does.

    Names the ranks that wait for others in a collective, those that make different calls, and those that died. RUN is
    the run directory that the job writes or wrote, or a folder with dumps of torch's Flight Recorder: pickles or JSON,
    with names that end in the rank.

    \b
    Exit code:  0  nothing is wrong: the job is running, or ended as it should
                1  RUN cannot be read
                3  ranks wait for others, or make different calls
                4  a rank died, failed or left nothing in RUN
    """
    from ddptrace.analysis.diagnosis.diagnose import diagnose as diagnosis_of
    from ddptrace.load.diagnosis.job import read_job
    from ddptrace.load.flight_recorder.job import read_dumps
    from ddptrace.load.run_folder import is_run

    dumps = read_dumps(run)
    diagnosis = diagnosis_of(read_job(run), dumps) if dumps is None or is_run(run) else diagnosis_of(dumps)
    if as_json:
        say_json(diagnosis)
    else:
        from ddptrace.render.diagnosis import diagnosis_text

        show(diagnosis_text(diagnosis))
    sys.exit(diagnosis.exit_code)
