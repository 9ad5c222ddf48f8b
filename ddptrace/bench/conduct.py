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
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Protocol, cast

from ddptrace.bench.statistics import ROUNDS_SURE
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.words import EVIDENCE
from ddptrace.schema import Evidence

POLL_S = 0.05
EVIDENCE_NAME = "executions from"
LAST_WORDS = 400
OURS = re.compile(r"^(\[rank\d+\]: )?(ddptrace\.errors\.\w+: )?")
"""What Python and torch put before a sentence of ours."""
NOISE = re.compile(r"^(\[rank\d+\]:\s*)?\[[WI]\d{4}|^USDT:")
"""Warnings of torch's C++ parts, which may come after the error."""


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

    Raises DdptraceError where a rank fails, with what it said last.
    """
    from ddptrace.render.sheet_page import write_sheet

    folder.mkdir(parents=True, exist_ok=True)
    measured = [_joined(name, options, folder, sys.stderr)] if "RANK" in os.environ else _started(name, options, folder)
    if int(os.environ.get("RANK", "0")) != 0:
        return None
    made = _with_doubt(_with_evidence(_module(name).sheet(options, measured), measured), options)
    write_sheet(made, {"options": asdict(cast(Any, options)), "measured": measured}, folder)
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


def _with_doubt(sheet: Sheet, options: Options) -> Sheet:
    """The sheet, told apart from a sure one where too few rounds were measured."""
    rounds = getattr(getattr(options, "repeats", None), "rounds", ROUNDS_SURE)
    if rounds >= ROUNDS_SURE:
        return sheet
    told = (
        f"Of {rounds} rounds an interval is only the range of what was seen, and proves no difference; "
        f"{ROUNDS_SURE} or more give 95 %."
    )
    return replace(sheet, words=(told, *sheet.words))


def _joined(name: str, options: Options, folder: Path, voice: IO[str]) -> Any:
    """This process is a rank."""
    from ddptrace.bench.job import Job

    job = Job.join(folder, options.backend, voice)
    measured = _module(name).measure(job, options)
    job.meet()
    return json.loads(json.dumps(measured))  # as if it had come out of a file, as the others' do


def _started(name: str, options: Options, folder: Path) -> list[Any]:
    measured = []
    for each, ranks in ((each, ranks) for each in _in_environments(options) for ranks in options.ranks):
        with tempfile.TemporaryDirectory() as scratch:
            answer = Path(scratch, "measured.json")
            told = json.dumps({"name": name, "options": asdict(cast(Any, each)), "folder": str(folder)})
            rank = [sys.executable, "-m", "ddptrace.bench.conduct", told, str(answer)]
            settings = getattr(each, "environment", "").split()
            _run_ranks(ranks, ["env", *settings, *rank] if settings else rank, folder)
            measured.append(json.loads(answer.read_text()))
    return measured


def _in_environments(options: Options) -> list[Options]:
    """As asked, and once more with each of `environments`, where a benchmark has them, as its `environment`."""
    tried = getattr(options, "environments", ())
    return [options, *(replace(cast(Any, options), environment=settings) for settings in tried)]


def _run_ranks(ranks: int, command: list[str], folder: Path) -> None:
    """Run a command once for each rank, to its end; one that fails ends the others. What they say: `rank-<r>.log`."""
    port = str(_free_port())
    with _files(folder, ranks) as outputs:
        place = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": port}
        common = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | place | {"MASTER_ADDR": "127.0.0.1"}
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, output in enumerate(outputs):
                told = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                out = sys.stderr if rank == 0 else output
                processes.append(subprocess.Popen(command, env=told, stdout=out, stderr=output))
            failed = _first_failure(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            log = folder / _log(failed)
            raise DdptraceError(f"rank {failed} of {ranks} failed: {_last_words(outputs[failed])} (all it said: {log})")


def _first_failure(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all; the first rank that ended other than well. Those that die of its death end a moment later."""
    while True:
        codes = [process.poll() for process in processes]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed
        time.sleep(POLL_S)


@contextmanager
def _files(folder: Path, ranks: int) -> Iterator[list[IO[bytes]]]:
    with ExitStack() as opened:
        yield [opened.enter_context((folder / _log(rank)).open("w+b")) for rank in range(ranks)]


def _log(rank: int) -> str:
    return f"rank-{rank}.log"


def _last_words(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if not NOISE.search(line)]
    return OURS.sub("", said[-1])[-LAST_WORDS:] if said else "it said nothing: it may have been killed"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _module(name: str) -> Benchmark:
    return cast(Benchmark, importlib.import_module(f"ddptrace.bench.{name}.experiment"))


def _be_a_rank(told: str, answer: str) -> None:
    import msgspec

    asked = json.loads(told)
    options = msgspec.convert(asked["options"], _module(asked["name"]).Options)
    measured = _joined(asked["name"], options, Path(asked["folder"]), sys.stdout)
    if os.environ["RANK"] == "0":
        Path(answer).write_text(json.dumps(measured))
    sys.stdout.flush()
    os._exit(0)  # Gloo now and then aborts while Python shuts down


if __name__ == "__main__":
    _be_a_rank(*sys.argv[1:])
