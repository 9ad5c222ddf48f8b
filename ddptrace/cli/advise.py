"""`ddptrace advise RUN`: which bucket sizes to take, what limits the step now, and what would not help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddptrace.cli.say import say, say_json

if TYPE_CHECKING:
    from ddptrace.analysis.whatif.advise import Advice, Verification
    from ddptrace.analysis.whatif.predict import Predictor


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON, and nothing else.")
@click.option(
    "--verify",
    metavar="COMMAND",
    help="Run this with the advice, {caps} in it, and hold the step against the forecast.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Run directory of --verify.  [default: RUN/advised]"
)
def advise(run: Path, as_json: bool, verify: str | None, output: Path | None) -> None:
    """Say which bucket_cap_mb to take for the training that RUN recorded, and what to expect of it.

    \b
    --verify runs your own script, traced, with what is advised in place of {caps}, in MiB with commas between:
      ddptrace advise run/ --verify \\
        'torchrun --nproc-per-node 2 -m ddptrace.run train.py --steps 30 --bucket-caps {caps}'
    """
    from ddptrace.analysis.whatif.advise import advise as advise_run
    from ddptrace.cli.analyze import progress
    from ddptrace.predictor import predictor
    from ddptrace.render.whatif.advice import advice_text, verification_text

    if verify is not None and CAPS not in verify:
        raise click.UsageError(f"--verify needs {CAPS} where the command takes its bucket caps")
    with progress() as tell:
        found = predictor(run, progress=tell)
    advice = advise_run(found)
    if not as_json:
        say(advice_text(advice), nl=False)
    verdict = None if verify is None else _verified(found, advice, verify, output or run / "advised")
    if as_json:
        say_json(advice.to_json_dict() | {"verified": verdict})
    elif verdict is not None:
        say(f"\n{verification_text(verdict)}", nl=False)


def _verified(recorded: Predictor, advice: Advice, command: str, run: Path) -> Verification:
    from ddptrace.analysis.whatif.advise import verification_of
    from ddptrace.cli.in_turns import make_run
    from ddptrace.errors import DdptraceError
    from ddptrace.predictor import predictor

    if os.path.lexists(run):
        raise DdptraceError(f"{run} is there already: say with --output where the run of --verify goes")
    caps = advice.best.setting.caps_mb or advice.recorded_caps_mb
    run.parent.mkdir(parents=True, exist_ok=True)
    make_run(run, command.replace(CAPS, ",".join(f"{cap:g}" for cap in caps)))
    return verification_of(advice.best, predictor(run), recorded)


CAPS = "{caps}"
