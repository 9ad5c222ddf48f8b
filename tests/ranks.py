"""Ranks that do not take two seconds of processor time each to import torch: they are forks of a process that has.

A rank finds what torchrun would give it: its environment, a store that somebody else hosts, a `__main__`, `sys.argv`
and `sys.path` of its own, and Python's shutdown at its end, which only leaves the modules whole that were imported
before the fork. Who gives the orders chooses whether Dynamo is imported before a program does it: whether it is there
makes a difference to some of what is tested.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

Order = dict[str, Any]

MODULE = "tests.ranks"
IMPORTED = ("torch.distributed.fsdp", "torch.fx.experimental.symbolic_shapes", "torch.onnx", "sympy")
"""What takes long of what programs import, or stock DDP for them."""
ORDER_NBYTES = 1 << 17
PORT_NBYTES = PID_NBYTES = 4


class Ranks:
    """The process that forks. It ends with this one, however that ends, and takes its ranks along."""

    def __init__(self, environ: dict[str, str], root: Path, imported: Sequence[str] = ()) -> None:
        """`imported`: modules that it imports, beside those that it always does, before it forks a rank."""
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-c",
            f"import sys, {MODULE}; {MODULE}.serve(int(sys.argv[1]), sys.argv[2:])",
            str(theirs.fileno()),
            *imported,
        ]
        self._server = subprocess.Popen(command, env=environ, cwd=root, pass_fds=[theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """End the process now."""
        self._orders.close()
        self._server.wait()

    def run(self, argv: list[str], ranks: int, environ: dict[str, str], timeout_s: float) -> tuple[bool, str]:
        """Whether all ranks of a program ended well, and what they said. The first that does not ends the others."""
        statuses, said = self.statuses(argv, ranks, environ, timeout_s, to_the_end=False)
        late = f"The ranks are not done after {timeout_s} s.\n" if statuses is None else ""
        return statuses is not None and not any(statuses), late + said

    def statuses(
        self,
        argv: list[str],
        ranks: int,
        environ: dict[str, str],
        timeout_s: float,
        *,
        to_the_end: bool,
        torchrun: dict[str, str | None] | None = None,
    ) -> tuple[list[int | None] | None, str]:
        """How each rank of a program ended, as `os.wait` tells it, and what they said; see `Job.statuses`."""
        with self.started(argv, ranks, environ, to_the_end=to_the_end, torchrun=torchrun) as job:
            statuses = job.statuses(timeout_s)
        return statuses, job.said

    @contextmanager
    def started(
        self,
        argv: list[str],
        ranks: int,
        environ: dict[str, str],
        *,
        to_the_end: bool,
        torchrun: dict[str, str | None] | None = None,
    ) -> Iterator[Job]:
        """The ranks of a program, which go on meanwhile; those that are left at the end are killed.

        `argv` is a file or `-m` and a module, and arguments. `to_the_end`: wait for every rank; otherwise the first
        failure ends the others, whose status is None. `torchrun` replaces torchrun's variables; None removes one.
        """
        order = {
            "argv": argv,
            "ranks": ranks,
            "environ": environ,
            "cwd": str(Path.cwd()),
            "to_the_end": to_the_end,
            "torchrun": torchrun or {},
        }
        answers, theirs = os.pipe()
        with (
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
            os.fdopen(answers, "rb", buffering=0) as answer,
        ):
            socket.send_fds(self._orders, [json.dumps(order).encode()], [stdout.fileno(), stderr.fileno(), theirs])
            os.close(theirs)
            launcher = int.from_bytes(answer.read(PID_NBYTES))
            assert launcher, "the process that forks ranks has ended"
            job = Job(launcher, answer)
            try:
                yield job
            finally:
                end(launcher)
                job.stdout, job.stderr = map(_text, (stdout, stderr))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@dataclass(slots=True)
class Job:
    """Ranks that were started together. `stdout`, `stderr`: of all of them, known when they have ended."""

    launcher: int
    answer: IO[bytes]
    stdout: str = ""
    stderr: str = ""

    @property
    def said(self) -> str:
        return self.stdout + self.stderr

    def statuses(self, timeout_s: float) -> list[int | None] | None:
        """How each rank ended, as `os.wait` tells it; None where the ranks are not done after so many seconds."""
        in_time = self.is_done(timeout_s)
        statuses: list[int | None] | None = json.loads(self.answer.read(ORDER_NBYTES) or "[1]") if in_time else None
        return statuses

    def is_done(self, timeout_s: float) -> bool:
        """Wait so many seconds at most: whether the ranks have ended."""
        return bool(select.select([self.answer], [], [], timeout_s)[0])


def end(launcher: int) -> None:
    """Whatever it started and is still there."""
    try:
        os.killpg(launcher, signal.SIGKILL)
    except ProcessLookupError:
        return


def serve(fd: int, imported: Sequence[str] = ()) -> None:
    """Fork a launcher for each order. Only ranks come back from here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who gives the orders hears it, and ends us
    orders = socket.socket(fileno=fd)
    imported_here: dict[str, ModuleType] = {}
    atexit.register(leave_whole, imported_here)  # registered first: called last
    gc.disable()  # imports leave next to no garbage, and looking for it takes a fifth of their time
    for module in (*IMPORTED, *imported):
        importlib.import_module(module)
    imported_here |= sys.modules
    skip_destructors()
    gc.collect()
    gc.freeze()
    gc.enable()
    launchers = set[int]()
    while True:
        order, fds, _, _ = socket.recv_fds(orders, ORDER_NBYTES, 3)
        if not order:
            for launcher in launchers:
                end(launcher)
            os._exit(0)
        launchers -= {launcher for launcher in launchers if os.waitpid(launcher, os.WNOHANG)[0]}
        launcher = os.fork()
        if not launcher:
            orders.close()
            return launch(json.loads(order), *fds)
        launchers.add(launcher)
        for each in fds:
            os.close(each)


def leave_whole(modules: dict[str, ModuleType]) -> None:
    """Keep these modules from Python's shutdown, which would take them apart object by object. It puts None in their
    places next anyway."""
    gc.collect()
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            sys.modules[name] = None  # type: ignore[assignment]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))


def skip_destructors() -> None:
    """End the process, when it ends, before the C++ destructors that are registered by now; later ones run."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # it is called before the other


def launch(order: Order, stdout: int, stderr: int, answer: int) -> None:
    """Fork the ranks, and then host the store where they meet: what has a store has threads, and forks no more."""
    os.setpgid(0, 0)
    os.write(answer, os.getpid().to_bytes(PID_NBYTES))
    speak_into(stdout, stderr)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    meeting, port = os.pipe()
    ranks: list[int] = []
    for rank in range(order["ranks"]):
        child = os.fork()
        if not child:
            os.close(answer)
            os.close(port)
            with os.fdopen(meeting, "rb", buffering=0) as told:
                where = int.from_bytes(told.read(PORT_NBYTES))
            return become(rank, order, where)
        ranks.append(child)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port, store.port.to_bytes(PORT_NBYTES) * len(ranks))
    os.write(answer, json.dumps(ends_of(ranks, to_the_end=order["to_the_end"])).encode())
    os._exit(0)


def speak_into(stdout: int, stderr: int) -> None:
    for fd, ours in enumerate((os.open(os.devnull, os.O_RDONLY), stdout, stderr)):
        os.dup2(ours, fd)
        os.close(ours)


def ends_of(ranks: list[int], *, to_the_end: bool) -> list[int | None]:
    """The status of each process; None of one that still runs when another has failed, unless it is waited for."""
    statuses = dict[int, int | None].fromkeys(ranks)
    while None in statuses.values():
        process, status = os.wait()
        statuses[process] = status
        if status and not to_the_end:
            break
    return list(statuses.values())


def become(rank: int, order: Order, port: int) -> None:
    """What `python -u PROGRAM ARGUMENTS...` is under torchrun, or `python -u -m MODULE ARGUMENTS...`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["cwd"])
    environ = order["environ"] | torchruns_environ(rank, order["ranks"], port) | order["torchrun"]
    os.environ.clear()
    os.environ.update({name: value for name, value in environ.items() if value is not None})
    sys.argv = order["argv"]
    write_whole_lines()
    main = sys.modules["__main__"] = ModuleType("__main__")
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path[0] = order["cwd"]
        runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]
    else:
        sys.path[0] = str(Path(sys.argv[0]).parent)
        main.__file__ = sys.argv[0]
        source = Path(sys.argv[0]).read_bytes()
        exec(compile(source, sys.argv[0], "exec", dont_inherit=True), main.__dict__)


def write_whole_lines() -> None:
    """Ranks share their files. Where PYTHONUNBUFFERED is set, Python would write each line in pieces, with those of
    other ranks between them."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def torchruns_environ(rank: int, ranks: int, port: int) -> dict[str, str]:
    numbers = {
        "RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0,
        "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "ROLE_WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1,
        "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
    }  # fmt: skip
    words = {
        "MASTER_ADDR": "127.0.0.1", "ROLE_NAME": "default", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": f"job-{port}",
        "TORCHELASTIC_ERROR_FILE": os.devnull, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    }  # fmt: skip
    return words | {name: str(number) for name, number in numbers.items()}
