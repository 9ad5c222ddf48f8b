"""`ddptrace advise RUN`: the best bucket sizes, what limits the step now, and what would not help."""

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
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
@click.option(
    "--verify",
    metavar="COMMAND",
    help="Run COMMAND with the recommended caps in place of {caps}, and compare its step time with the prediction.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Run directory for --verify.  [default: RUN/advised]"
)
def advise(run: Path, as_json: bool, verify: str | None, output: Path | None) -> None:
    """Recommend bucket sizes for the training that RUN recorded.

    Predicts the step time with the recommended bucket_cap_mb, and says what limits the step and what would not help.

    \b
    --verify runs your own training command, traced, with the recommended caps (MiB, comma-separated) as {caps}:
      ddptrace advise run/ --verify \\
        'torchrun --nproc-per-node 2 -m ddptrace.run train.py --steps 30 --bucket-caps {caps}'
    """
    from ddptrace.analysis.whatif.advise import advise as advise_run
    from ddptrace.cli.analyze import progress
    from ddptrace.predictor import predictor
    from ddptrace.render.whatif.terminal import advice_text, verification_text

    if verify is not None and CAPS not in verify:
        raise click.UsageError(f"--verify needs {CAPS} in its command, in the place of the bucket caps")
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
        raise DdptraceError(f"{run} already exists: choose another directory for the run of --verify with --output")
    caps = advice.best.setting.caps or advice.recorded_caps_mb
    run.parent.mkdir(parents=True, exist_ok=True)
    make_run(run, command.replace(CAPS, ",".join(f"{cap:g}" for cap in caps)))
    return verification_of(advice.best, predictor(run), recorded)


CAPS = "{caps}"
