"""Runs a benchmark: starts its ranks on this machine, or is one of ranks that somebody else started.

    ddptrace bench ddp                                  starts ranks here, waits, shows
    torchrun --nnodes 2 ... -m ddptrace bench ddp       every rank runs this command; rank 0 shows

A benchmark is a folder whose experiment.py has an `Options` dataclass (`ranks`: how many, one job each), `measure(job,
options)` that every rank runs and whose answer on rank 0 counts, and `sheet(options, measured)` that makes tables. One
whose options hold `environments` ("A=1 B=2" each) has all jobs once more in each, told it as `environment`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

from ddptrace.bench.folder import held, ranks_elsewhere
from ddptrace.bench.launch import refuse_too_many, run_ranks
from ddptrace.bench.rank import end_failed, end_with_starter, hear_signals
from ddptrace.bench.statistics import ROUNDS_SURE
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.words import EVIDENCE
from ddptrace.schema import Evidence

EVIDENCE_NAME: Final = "executions from"
ELSEWHERE: Final = "ranks_elsewhere"
"""In what a job measured: of how many ranks the traced runs are on other disks, where nobody analysed them."""


class Options(Protocol):
    """What every benchmark is told; each has more of its own, all of it JSON."""

    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def backend(self) -> str | None: ...


class Benchmark(Protocol):
    """What a benchmark's module holds."""

    Options: type[Options]

    def measure(self, job: Any, options: Any) -> Any: ...
    def sheet(self, options: Any, measured: list[Any]) -> Sheet: ...


def conduct(name: str, options: Options, folder: Path) -> Sheet | None:
    """Measure, and write `folder`/NAME.json, .md and .html. None on every rank but 0 of a job that others started.

    Raises DdptraceError where a rank fails, with the reason, and where another benchmark writes into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    joins = "RANK" in os.environ
    if joins:
        hear_signals()
    with held(folder) if _shows() else nullcontext():
        measured = [_joined(name, options, folder, sys.stderr)] if joins else _started(name, options, folder)
        return _sheet(name, options, measured, folder) if _shows() else None


def _shows() -> bool:
    """Whether this process is rank 0, or starts the ranks. A rank that is none is refused when it joins."""
    rank = os.environ.get("RANK", "0")
    return rank.isdecimal() and int(rank) == 0


def _sheet(name: str, options: Options, measured: list[Any], folder: Path) -> Sheet:
    from ddptrace.render.sheet_page import write_sheet

    made = _with_doubt(_with_evidence(_module(name).sheet(options, measured), measured), options, measured)
    try:
        write_sheet(made, {"options": asdict(cast(Any, options)), "measured": measured}, folder)
    except OSError as error:
        raise DdptraceError(f"all is measured and cannot be written into {folder}: {error.strerror}") from error
    return made


def _with_evidence(sheet: Sheet, measured: object) -> Sheet:
    """The sheet, saying what the executions in its traced runs rest on."""
    if EVIDENCE_NAME in dict(sheet.setup):
        return sheet
    told = "; ".join(EVIDENCE[Evidence(code)] for code in sorted(set(_evidence_in(measured))))
    return replace(sheet, setup=(*sheet.setup, (EVIDENCE_NAME, told))) if told else sheet


def _evidence_in(measured: object) -> Iterator[str]:
    if isinstance(measured, list):
        for one in measured:
            yield from _evidence_in(one)
    elif isinstance(measured, dict):
        for name, one in measured.items():
            if name == "evidence" and isinstance(one, str) and one:
                yield one
            else:
                yield from _evidence_in(one)


def _with_doubt(sheet: Sheet, options: Options, measured: list[Any]) -> Sheet:
    """The sheet, told apart from a sure one where too few rounds were measured or too few ranks analysed."""
    return replace(sheet, words=(*_few_rounds(options), *_ranks_missing(measured), *sheet.words))


def _few_rounds(options: Options) -> Iterator[str]:
    rounds = getattr(getattr(options, "repeats", None), "rounds", ROUNDS_SURE)
    if rounds < ROUNDS_SURE:
        yield (
            f"Of {rounds} rounds an interval is only the range of what was seen, and proves no difference; "
            f"{ROUNDS_SURE} or more give 95 %."
        )


def _ranks_missing(measured: list[Any]) -> Iterator[str]:
    """Only what rank 0's host holds is analysed."""
    missing, ranks = max((tuple(job.get(ELSEWHERE, (0, 0))) for job in measured), default=(0, 0))
    if missing:
        yield (
            f"The folder is not shared: {missing} of {ranks} ranks wrote their part of the traced runs on other hosts, "
            "and what is said of traced runs rests on the others; give a folder that all hosts share (--out)."
        )


def _joined(name: str, options: Options, folder: Path, voice: IO[str]) -> Any:
    """This process is a rank."""
    from ddptrace.bench.job import Job

    job = Job.join(folder, options.backend, voice)
    apart = ranks_elsewhere(job)
    measured = _module(name).measure(job, options) | {ELSEWHERE: (apart, job.ranks)}
    job.meet()
    return json.loads(json.dumps(measured))  # as if it had come out of a file, as the others' do


def _started(name: str, options: Options, folder: Path) -> list[Any]:
    measured = []
    refuse_too_many(max(options.ranks))
    for each, ranks in ((each, ranks) for each in _in_environments(options) for ranks in options.ranks):
        with tempfile.TemporaryDirectory() as scratch:
            answer = Path(scratch, "measured.json")
            told = json.dumps({"name": name, "options": asdict(cast(Any, each)), "folder": str(folder)})
            rank = [sys.executable, "-m", "ddptrace.bench.conduct", told, str(answer)]
            settings = getattr(each, "environment", "").split()
            run_ranks(ranks, ["env", *settings, *rank] if settings else rank, folder)
            measured.append(json.loads(answer.read_text()))
    return measured


def _in_environments(options: Options) -> list[Options]:
    """As asked, and once more with each of `environments`, where a benchmark has them, as its `environment`."""
    tried = getattr(options, "environments", ())
    return [options, *(replace(cast(Any, options), environment=settings) for settings in tried)]


def _module(name: str) -> Benchmark:
    return cast(Benchmark, importlib.import_module(name))


def _be_a_rank(told: str, answer: str) -> None:
    end_with_starter()
    try:
        _measure_as_told(json.loads(told), Path(answer))
    except BaseException as error:
        end_failed(error)
    sys.stdout.flush()
    os._exit(0)  # Gloo now and then aborts while Python shuts down


def _measure_as_told(asked: dict[str, Any], answer: Path) -> None:
    import msgspec

    options = msgspec.convert(asked["options"], _module(asked["name"]).Options)
    measured = _joined(asked["name"], options, Path(asked["folder"]), sys.stdout)
    if os.environ["RANK"] == "0":
        answer.write_text(json.dumps(measured))


if __name__ == "__main__":
    _be_a_rank(*sys.argv[1:])
