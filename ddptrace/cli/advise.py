"""`ddptrace advise RUN`: the best bucket sizes, what limits the step now, and what would not help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddptrace.cli.say import say, say_json, show
from ddptrace.errors import printable

if TYPE_CHECKING:
    from ddptrace.analysis.whatif.advise import Advice, Verification
    from ddptrace.analysis.whatif.predict import Predictor
    from ddptrace.predictor import Understood


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
    """Recommend what to change in the training that RUN recorded.

    Predicts the step time with the recommended bucket_cap_mb, and says what limits the step and what would not help. Of
    FSDP2 units it prints the calls of the best way found, with the peak memory of a rank. On a GPU, and where
    no buckets are sent, it says what limits the step, with a prediction for each cause.

    \b
    --verify runs your own training command, traced, with the recommended caps (MiB, comma-separated) as {caps}:
      ddptrace advise run/ --verify \\
        'torchrun --nproc-per-node 2 -m ddptrace.run train.py --steps 30 --bucket-caps {caps}'
    """
    from ddptrace.analysis.whatif.advise import Advice
    from ddptrace.cli.analyze import progress
    from ddptrace.errors import DdptraceError
    from ddptrace.predictor import understand
    from ddptrace.render.whatif.answers import advice_text, run_advice_text, verification_text

    if verify is not None and CAPS not in verify:
        raise click.UsageError(f"--verify needs {CAPS} in its command, in the place of the bucket caps")
    with progress() as tell:
        found = understand(run, progress=tell)
    advice = found.advice
    if not isinstance(advice, Advice):
        if verify is not None:
            raise DdptraceError("--verify runs a program with other bucket caps, and the advice for this run has none")
        if as_json:
            say_json(advice.to_json_dict() | {"verified": None})
        elif found.result is not None:
            say(run_advice_text(advice, found.result), nl=False)
        return
    if not as_json:
        show(advice_text(advice, found.result))
    verdict = None if verify is None else _verified(found, advice, verify, output or run / "advised")
    if as_json:
        say_json(advice.to_json_dict() | {"verified": verdict})
    elif verdict is not None:
        show(f"\n{verification_text(verdict)}")


def _verified(recorded: Understood, advice: Advice, command: str, run: Path) -> Verification:
    from ddptrace.analysis.whatif.advise import verification_of
    from ddptrace.cli.in_turns import make_run
    from ddptrace.errors import DdptraceError
    from ddptrace.predictor import understand

    if os.path.lexists(run):
        raise DdptraceError(f"{run} already exists: choose another directory for the run of --verify with --output")
    caps = advice.best.setting.caps or advice.recorded_caps_mb
    run.parent.mkdir(parents=True, exist_ok=True)
    say(f"Running {printable(command)}; its output goes to {printable(run.with_suffix('.log'))}", err=True)
    make_run(run, command.replace(CAPS, ",".join(f"{cap:g}" for cap in caps)))
    return verification_of(advice.best, _of_buckets(understand(run)), _of_buckets(recorded))


def _of_buckets(found: Understood) -> Predictor:
    """Raises DdptraceError where the run tells nothing of buckets."""
    from ddptrace.analysis.whatif.predict import Predictor
    from ddptrace.errors import DdptraceError

    predictor = found.predictor
    if not isinstance(predictor, Predictor):
        raise DdptraceError("the command sent no buckets of a data-parallel module on CPUs, as the recorded run did")
    return predictor


CAPS = "{caps}"
