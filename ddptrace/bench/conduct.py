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

from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet

POLL_S = 0.05
LAST_WORDS = 400
OURS = re.compile(r"^(\[rank\d+\]: )?(ddptrace\.errors\.\w+: )?")
"""What Python and torch put before a sentence of ours."""


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
    made = _module(name).sheet(options, measured)
    write_sheet(made, {"options": asdict(cast(Any, options)), "measured": measured}, folder)
    return made


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
        processes = [
            subprocess.Popen(
                command, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=sys.stderr if rank == 0 else output, stderr=output,
            )
            for rank, output in enumerate(outputs)
        ]  # fmt: skip
        try:
            failed = _first_failure(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            log = folder / _log(failed)
            raise DdptraceError(f"rank {failed} of {ranks} failed: {_last_words(outputs[failed])} (all it said: {log})")


def _first_failure(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all; the first rank that ended other than well."""
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
    lines = output.read().decode(errors="replace").strip().splitlines()
    return OURS.sub("", lines[-1])[-LAST_WORDS:] if lines else "it said nothing"


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
