"""Runs a benchmark: starts its ranks on this machine, or is one of ranks that somebody else started.

    ddptrace bench ddp                                  starts ranks here, waits, shows
    torchrun --nnodes 2 ... -m ddptrace bench ddp       every rank runs this command; rank 0 shows

Options with `environments` ("A=1 B=2" each) run all jobs once more in each, with `environment` set to it.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final, cast

from ddptrace.bench.experiment import Experiment, JobOptions, Measured, TimedOptions
from ddptrace.bench.job import Job
from ddptrace.bench.launch import end_failed, end_with_starter, hear_signals, refuse_too_many, run_ranks
from ddptrace.bench.timing import ROUNDS_SURE
from ddptrace.errors import DdptraceError
from ddptrace.own_module import own_module
from ddptrace.render.sheet import Sheet
from ddptrace.render.words import EVIDENCE
from ddptrace.schema import Evidence
from ddptrace.units import counted

EVIDENCE_NAME: Final = "executions from"
ELSEWHERE: Final = "ranks_elsewhere"
"""Key of what a job measured: how many ranks wrote their traced runs to other disks, which nobody analyzes."""
LOCK: Final = ".lock"


def conduct(module: str, options: JobOptions, folder: Path) -> Sheet | None:
    """Measure, and write NAME.json, NAME.md and NAME.html into `folder`.

    `module`: holds the `EXPERIMENT`. Returns None on every rank but 0 of a job that others started.
    Raises: DdptraceError if a rank fails, with the reason, and if another benchmark writes into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    joins = "RANK" in os.environ
    if joins:
        hear_signals()
    with held(folder) if _shows() else nullcontext():
        measured = [_joined(module, options, folder, sys.stderr)] if joins else _started(module, options, folder)
        return _sheet(module, options, measured, folder) if _shows() else None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other benchmarks out of the folder, so that their files do not mix. The lock ends with its holder.

    Raises: DdptraceError if another benchmark holds it.
    """
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DdptraceError(
                f"another benchmark writes into {folder}: wait for its end, or use another folder (--out)"
            ) from None
        except OSError:
            pass  # some clusters' file systems have no locks
        yield


def experiment_in(module: str) -> Experiment[Any]:
    """Return the `EXPERIMENT` of a module."""
    return cast(Experiment[Any], importlib.import_module(module).EXPERIMENT)


def _shows() -> bool:
    """Whether this process is rank 0, or starts the ranks. A RANK that is no number is refused when it joins."""
    rank = os.environ.get("RANK", "0")
    return rank.isdecimal() and int(rank) == 0


def _started(module: str, options: JobOptions, folder: Path) -> list[Measured]:
    measured = []
    refuse_too_many(max(options.ranks))
    for each, ranks in ((each, ranks) for each in in_environments(options) for ranks in options.ranks):
        with tempfile.TemporaryDirectory() as scratch:
            answer = Path(scratch, "measured.json")
            order = json.dumps({"module": module, "options": asdict(each), "folder": str(folder)})
            rank = [*own_module("ddptrace.bench.conduct"), order, str(answer)]
            settings = getattr(each, "environment", "").split()
            run_ranks(ranks, ["env", *settings, *rank] if settings else rank, folder)
            measured.append(json.loads(answer.read_text()))
    return measured


def in_environments(options: JobOptions) -> list[JobOptions]:
    """Return the options as they are, and once more with each of their `environments`, if they have any."""
    tried = getattr(options, "environments", ())
    return [options, *(replace(cast(Any, options), environment=settings) for settings in tried)]


def _joined(module: str, options: JobOptions, folder: Path, voice: IO[str]) -> Measured:
    """Measure as a rank."""
    job = Job.join(folder, options.backend, voice)
    apart = _ranks_elsewhere(job)
    measured = experiment_in(module).measure(job, options) | {ELSEWHERE: (apart, job.ranks)}
    job.meet()
    found: Measured = json.loads(json.dumps(measured))  # as if read from a file, like other jobs' answers
    return found


def _ranks_elsewhere(job: Job) -> int:
    """Return how many ranks write to another disk, which rank 0 cannot read. Collective."""
    name = f".seen-{uuid.uuid4().hex}"
    mark = job.folder / name
    if job.rank == 0:
        mark.touch()
    name = str(job.gather(name)[0])
    seen = job.gather((job.folder / name).exists())
    if job.rank == 0:
        mark.unlink()
    return seen.count(False)


def _sheet(module: str, options: JobOptions, measured: list[Measured], folder: Path) -> Sheet:
    from ddptrace.render.sheet_page import write_sheet

    made = experiment_in(module).sheet(options, measured)
    made = with_doubt(with_evidence(made, measured), options, measured)
    try:
        write_sheet(made, {"options": asdict(options), "measured": measured}, folder)
    except OSError as error:
        raise DdptraceError(f"the measurements cannot be written into {folder}: {error.strerror}") from error
    return made


def with_evidence(sheet: Sheet, measured: object) -> Sheet:
    """Return the sheet with the evidence for the executions in its traced runs."""
    if EVIDENCE_NAME in dict(sheet.setup):
        return sheet
    words = "; ".join(EVIDENCE[Evidence(code)] for code in sorted(set(_evidence_in(measured))))
    return replace(sheet, setup=(*sheet.setup, (EVIDENCE_NAME, words))) if words else sheet


def _evidence_in(measured: object) -> Iterator[str]:
    if isinstance(measured, list):
        for value in measured:
            yield from _evidence_in(value)
    elif isinstance(measured, dict):
        for name, value in measured.items():
            if name == "evidence" and isinstance(value, str) and value:
                yield value
            else:
                yield from _evidence_in(value)


def with_doubt(sheet: Sheet, options: JobOptions, measured: Sequence[Measured]) -> Sheet:
    """Return the sheet, beginning with its doubts: too few rounds, or traced runs that nobody analyzed."""
    return replace(sheet, words=(*_few_rounds(options), *_ranks_missing(measured), *sheet.words))


def _few_rounds(options: JobOptions) -> Iterator[str]:
    if isinstance(options, TimedOptions) and options.repeats.rounds < ROUNDS_SURE:
        yield (
            f"With {counted(options.repeats.rounds, 'round')} an interval is only the range, which proves no "
            f"difference. {ROUNDS_SURE} or more rounds give 95 % intervals."
        )


def _ranks_missing(measured: Sequence[Measured]) -> Iterator[str]:
    """Rank 0 analyzes only what its host holds."""
    missing, ranks = max((tuple(job.get(ELSEWHERE, (0, 0))) for job in measured), default=(0, 0))
    if missing:
        yield (
            f"The folder is not shared: {missing} of {ranks} ranks wrote their part of the traced runs on other hosts. "
            "All numbers from traces rest on the other ranks. Use a folder that all hosts share (--out)."
        )


def _be_a_rank(order: str, answer: str) -> None:
    end_with_starter()
    try:
        _measure(json.loads(order), Path(answer))
    except BaseException as error:
        end_failed(error)
    sys.stdout.flush()
    os._exit(0)  # Gloo now and then aborts while Python shuts down


def _measure(order: dict[str, Any], answer: Path) -> None:
    import msgspec

    options = msgspec.convert(order["options"], experiment_in(order["module"]).options)
    measured = _joined(order["module"], options, Path(order["folder"]), sys.stdout)
    if os.environ["RANK"] == "0":
        answer.write_text(json.dumps(measured))


if __name__ == "__main__":
    _be_a_rank(*sys.argv[1:])
