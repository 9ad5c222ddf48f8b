"""What a program does to Python itself: tracing, collecting, scheduling, limits."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import contextvars
import cProfile
import ctypes
import faulthandler
import gc
import importlib.util
import inspect
import io
import linecache
import locale
import logging
import os
import pdb
import pstats
import random
import resource
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import trace as tracing
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, WIDTH, batch, ddp, join, keep_error, loss_of, network, sgd, steps, train

Trace = Callable[..., AbstractContextManager[Any]]

HERE = __file__
RAISED = 25


@program(ranks=2)
def traced_by_itself() -> None:
    """Traces its own lines by sys.settrace and threading.settrace."""
    lines: list[int] = []

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == HERE:
            lines.append(frame.f_lineno)
        return watch

    model = ddp()
    threading.settrace(watch)
    sys.settrace(watch)
    for _ in steps(model):
        pass
    thread = threading.Thread(target=lambda: lines.append(0))
    thread.start()
    thread.join()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    keep(lines)


@program()
def tracers_set_before(trace: Trace) -> None:
    """Has set its tracer and profiler before the trace, and finds them there after it."""
    calls: list[str] = []

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == HERE:
            calls.append(f"{event} {frame.f_code.co_name}")
        return watch

    def count(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename == HERE and event in ("call", "return"):
            calls.append(f"profile {event} {frame.f_code.co_name}")

    sys.settrace(watch)
    sys.setprofile(count)
    with trace():
        train()
        keep(sys.gettrace() is watch, sys.getprofile() is count)
    keep(sys.gettrace() is watch, sys.getprofile() is count)
    sys.setprofile(None)
    sys.settrace(None)
    keep(calls)


@program()
def a_tracer_that_raises() -> None:
    """Raises out of a trace function in the middle of a forward, and trains on."""

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_name == "linear_of_mine":
            raise KeyError("in the tracer")
        return None

    def linear_of_mine(inputs: torch.Tensor) -> torch.Tensor:
        return inputs

    class Own(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return linear_of_mine(inputs)

    sys.settrace(watch)
    keep_error(Own(), batch())
    sys.settrace(None)
    train()


@program(python=(3, 12))
def monitored() -> None:
    """Watches its own functions by sys.monitoring."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    calls: list[str] = []

    def start(code: Any, offset: int) -> Any:
        if code.co_filename == HERE:
            calls.append(code.co_name)
        return None if code.co_filename == HERE else monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "mine")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, start)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)
    train()
    monitoring.set_events(monitoring.COVERAGE_ID, 0)
    monitoring.free_tool_id(monitoring.COVERAGE_ID)
    keep(calls)


class Steps(bdb.Bdb):
    """Steps through this file, and goes over what others are called."""

    def __init__(self) -> None:
        super().__init__(skip=["torch.*", "ddptrace.*"])
        self.seen: list[str] = []

    def user_line(self, frame: FrameType) -> None:
        if frame.f_code.co_filename == HERE:
            self.seen.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            self.set_step()
        else:
            self.set_return(frame)


def small_training() -> None:
    model = network()
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    keep(loss)


@program()
def debugged() -> None:
    """Steps through a training with bdb, and with pdb by commands."""
    debugger = Steps()
    debugger.runcall(small_training)
    keep(debugger.seen)
    commands = io.StringIO("break small_training\ncontinue\nnext\nnext\nstep\nreturn\nprint(2)\nclear 1\ncontinue\n")
    output = io.StringIO()
    session = pdb.Pdb(stdin=commands, stdout=output, nosigint=True, readrc=False)
    session.use_rawinput = False
    session.prompt = ""
    session.run("small_training()", globals())
    keep([line for line in output.getvalue().splitlines() if line.startswith(("->", "2"))])


@program()
def covered() -> None:
    """Measures which of its lines run, by coverage where it is installed and by Python's trace module."""
    found = tracing.Trace(count=1, trace=0, ignoredirs=[sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")])
    found.runfunc(small_training)
    keep(sorted(where for where in found.results().counts.items() if where[0][0] == HERE))
    if importlib.util.find_spec("coverage"):
        import coverage

        measured = coverage.Coverage(data_file=None, include=[HERE])
        measured.start()
        small_training()
        measured.stop()
        keep(sorted(measured.get_data().lines(HERE) or []))


@program()
def profiled_by_python() -> None:
    """Measures its calls by cProfile, and its memory by tracemalloc."""
    profiler = cProfile.Profile()
    with contextlib.suppress(ValueError):  # another one is active
        profiler.runcall(small_training)
        keep(sorted(name for file, _, name in pstats.Stats(profiler).stats if file == HERE))  # type: ignore[attr-defined]
    tracemalloc.start(3)
    small_training()
    keep(tracemalloc.is_tracing(), tracemalloc.get_traced_memory()[0] > 0)
    tracemalloc.stop()


@program()
def without_garbage_collection() -> None:
    """Switches garbage collection off, freezes, collects, and counts its own objects."""
    gc.disable()
    train()
    keep(gc.isenabled(), gc.collect() >= 0)
    gc.freeze()
    train()
    gc.unfreeze()
    gc.set_threshold(1, 1, 1)
    gc.enable()
    train()
    keep(gc.get_threshold())
    gc.set_threshold(700, 10, 10)
    gc.collect()
    keep(sum(type(one) is nn.Linear for one in gc.get_objects()))
    model = network()
    keep(sum(type(one) is nn.Linear for one in gc.get_objects()), len(gc.get_referrers(model)) > 0)
    gc.set_debug(gc.DEBUG_SAVEALL)
    cycle: list[Any] = []
    cycle.append(cycle)
    del cycle
    gc.collect()
    keep([type(one).__name__ for one in gc.garbage if type(one) is list and len(one) == 1])
    gc.set_debug(0)
    gc.garbage.clear()


@program()
def callbacks_of_the_collector() -> None:
    """Registers its own callbacks with the garbage collector, and removes them all."""
    phases: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    gc.callbacks.append(callback)
    gc.collect()
    train()
    keep(callback in gc.callbacks, phases[:2])
    gc.callbacks.remove(callback)
    train()
    gc.callbacks.clear()
    train()


@program()
def memory_of_its_own_objects() -> None:
    """Counts references to its objects."""
    model = network()
    train(model)
    parameter = next(model.parameters())
    keep(sys.getrefcount(model), sys.getrefcount(parameter), sys.getrefcount(model.forward))
    output = model(batch())
    keep(sys.getrefcount(output), sys.getrefcount(output.grad_fn))


async def train_later(number: int) -> nn.Module:
    model = network(layers=number)
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, WIDTH)).sum()
        await asyncio.sleep(0)
        loss.backward()
        await asyncio.sleep(0)
        optimizer.step()
    return model


@program(ranks=2)
def asynchronous() -> None:
    """Trains in asyncio's tasks, in turns, and waits for collectives in threads."""
    join()

    async def main() -> None:
        models = await asyncio.gather(*(train_later(number) for number in (1, 2, 3)))
        keep(*models)
        loop = asyncio.get_running_loop()
        value = torch.ones(3)
        await loop.run_in_executor(None, dist.all_reduce, value)
        await asyncio.to_thread(train, ddp())
        keep(value)
        try:
            async with asyncio.timeout(0.05):
                await asyncio.sleep(30)
        except TimeoutError:
            keep("too late")

    asyncio.run(main())


@program()
def coroutines_in_forward() -> None:
    """Runs an event loop inside a forward, and a forward in a coroutine that is never awaited to its end."""

    class Loops(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return asyncio.run(self.later(inputs))

        async def later(self, inputs: torch.Tensor) -> torch.Tensor:
            await asyncio.sleep(0)
            return inputs * 2

    keep(Loops()(batch()))
    dropped = train_later(1)
    dropped.send(None)
    dropped.close()
    train()


@program(needs=("greenlet",))
def greenlets() -> None:
    """Switches between greenlets in the middle of forwards."""
    from greenlet import greenlet

    class Switches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.body(inputs)
            other.switch()
            return hidden  # type: ignore[no-any-return]

    def beside() -> None:
        while True:
            train(None, None, 1)
            main.switch()

    main = greenlet.getcurrent()
    other = greenlet(beside)
    train(Switches())


@program()
def contexts() -> None:
    """Trains inside copied contexts, with variables that it sets in hooks."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
    model = network()

    def count(*_: object) -> None:
        variable.set(variable.get() + 1)

    model.register_forward_hook(count)
    contextvars.copy_context().run(train, model)
    keep(variable.get())
    train(model)
    keep(variable.get(), len(list(contextvars.copy_context())))


@program()
def functions_of_contexts() -> None:
    """Enters contexts in one function and leaves them in another, and suspends generators in forwards."""

    class Yields(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return next(self.parts(inputs))

        def parts(self, inputs: torch.Tensor) -> Any:
            yield inputs * 2
            yield inputs * 3

    model = Yields()
    keep(model(batch()))
    halves = (model(batch()) for _ in range(3))
    keep(next(halves))
    del halves
    train()


@program(ranks=2)
def threads_of_all_kinds() -> None:
    """Trains beside threads that compute, wait, start others and end by exceptions; and inspects their stacks."""
    join()
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            network_of_thread(data).sum().backward()

    def fail() -> None:
        raise ValueError("in a thread")

    network_of_thread, data = network(), torch.ones(4, WIDTH)
    threading.excepthook = lambda args: keep(args.exc_type.__name__)
    threads = [threading.Thread(target=compute, name=f"computes {number}") for number in range(2)]
    threads.append(threading.Thread(target=lambda: threading.Thread(target=fail).start()))
    for thread in threads:
        thread.start()
    threads[2].join()
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
        for frame in sys._current_frames().values():
            traceback.extract_stack(frame)
    stop.set()
    for thread in threads:
        thread.join()
    keep(model)
    threading.stack_size(1 << 20)
    thread = threading.Thread(target=lambda: model.module(data).sum().backward())
    thread.start()
    thread.join()
    threading.stack_size(0)
    sys.setswitchinterval(1e-6)
    train(model)
    sys.setswitchinterval(0.005)


@program()
def recursion_limits() -> None:
    """Lowers and raises the recursion limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    train()
    sys.setrecursionlimit(3000)
    train()
    sys.setrecursionlimit(before)


@program()
def inspected() -> None:
    """Looks at its own stack and at the functions of torch from inside a forward."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            names = [frame.function for frame in inspect.stack(0)]
            keep(names[0], "_call_impl" in names, names[-1])
            keep(inspect.signature(nn.Module.__call__), inspect.signature(torch.autograd.backward))
            keep(inspect.getmodule(torch.autograd.backward).__name__, torch.autograd.backward.__qualname__)
            keep(len(inspect.getsource(torch.autograd.backward)), inspect.isfunction(torch.autograd.backward))
            keep(torch.autograd.backward.__doc__ is not None, torch.amp.GradScaler.step.__module__)
            return self.body(inputs)  # type: ignore[no-any-return]

    model = Looks()
    model(batch())
    keep(linecache.getline(HERE, 1))
    train(model, None, 2)


@program()
def folders_changed(trace: Trace) -> None:
    """Changes its working directory, its mask for files and its home inside the trace."""
    before, mask = Path.cwd(), os.umask(0o077)
    folder = Path(f"/tmp/hostile-folder-{os.getpid()}")
    folder.mkdir()
    with trace():
        os.chdir(folder)
        train()
        (folder / "mine").write_text("x")
        keep((folder / "mine").stat().st_mode)
        os.umask(0o777)
        train()
    os.chdir(before)
    shutil.rmtree(folder)
    keep(os.umask(mask))


@program(records=False, notes=frozenset({"no-meta", "not-settled", "surface-failed"}))
def run_directory_removed(trace: Trace) -> None:
    """Removes the run directory in the middle, and what it was in."""
    with trace("deep/run"):
        train()
        for folder in Path(os.environ["HOSTILE_FOLDER"]).glob("deep"):
            shutil.rmtree(folder)
        train()


@program(records=False)
def run_directory_made_read_only(trace: Trace) -> None:
    """Makes the run directory a place where nothing can be written, which root does not mind."""
    with trace("deep/run"):
        train()
        for folder in Path(os.environ["HOSTILE_FOLDER"]).glob("deep/run/*"):
            folder.chmod(0)
        train()


@program()
def few_files() -> None:
    """Opens as many files as it may, and trains on without one more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    train()
    files = []
    with contextlib.suppress(OSError):
        while True:
            files.append(Path(os.devnull).open())  # noqa: SIM115
    train()
    for file in files:
        file.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
    train()


@program(records=False)
def small_files_only(trace: Trace) -> None:
    """May write small files only, and does not ignore the signal that comes with a larger one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with trace("first"):
        train()
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        for _ in range(20):
            train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ddptrace says that it records nothing
        with trace("second"):
            train()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@program()
def files_closed_by_number() -> None:
    """Closes all files that it has not opened, as daemons do, and opens its own in their places."""
    train()
    from tests.hostile import kept

    mine = os.dup2(kept._file, 200)
    os.closerange(3, 200)
    kept._file = mine
    read, write = os.pipe()
    train()
    os.write(write, b"whole")
    opened = [Path(os.devnull).open("rb") for _ in range(5)]  # noqa: SIM115
    train()
    keep(os.read(read, 100), [file.read() for file in opened])
    for file in opened:
        file.close()


@program(environ=(("LC_ALL", "C"), ("LANG", "C"), ("PYTHONIOENCODING", "ascii"), ("TZ", "Asia/Kolkata")))
def other_locales() -> None:
    """Runs in another locale and time zone, with names that ASCII has no letters for."""
    locale.setlocale(locale.LC_ALL, "C")
    time.tzset()

    class Größe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.körper = network()

        def forward(self, größe: torch.Tensor) -> torch.Tensor:
            return self.körper(größe)  # type: ignore[no-any-return]

    train(Größe())
    keep(locale.getpreferredencoding(False), time.tzname)
    print("plain")


@program()
def clocks_replaced() -> None:
    """Replaces Python's clocks and sleep while it trains."""
    names = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "sleep")
    originals = {name: getattr(time, name) for name in names}
    for name in names:
        setattr(time, name, lambda *_: 0)
    train()
    for name, original in originals.items():
        setattr(time, name, original)
    train()


@program(profiled=False)  # the thread that trains writes the file of a window
def functions_of_python_replaced() -> None:
    """Replaces open, print, os.write, json.dumps, and import while it trains."""
    import builtins
    import json

    asked: list[str] = []

    def counting(name: str, original: Any) -> Any:
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                asked.append(name)
            return original(*args, **kwargs)

        return replaced

    places = ((builtins, "open"), (builtins, "print"), (os, "getpid"), (json, "dumps"), (os, "open"), (os, "urandom"))
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, original in originals:
        setattr(owner, name, counting(name, original))
    model = network()
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
    for owner, name, original in originals:
        setattr(owner, name, original)
    keep([name for name in asked if name != "getpid"])


@program()
def random_numbers() -> None:
    """Draws random numbers of every kind between steps, and saves and restores their states."""
    model = network()
    for _ in steps(model):
        keep(torch.rand(1), random.random(), float(np.random.rand()))
        state = torch.get_rng_state()
        keep(torch.rand(1))
        torch.set_rng_state(state)
    keep(torch.initial_seed(), torch.random.seed() != 0)
    torch.manual_seed(1)


@program()
def loggers() -> None:
    """Logs everything at the lowest level, torch's loggers as well, and counts who logs."""
    records: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.name)

    handler = Notes()
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(0)
    train()
    model = network()
    loss_of(model).backward()
    root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    keep(sorted(set(records)))
    logging.captureWarnings(True)
    warnings.warn("captured", stacklevel=1)
    logging.captureWarnings(False)


@program(profiled=False)  # the thread that trains removes a window's unpacked file
def audited() -> None:
    """Hears Python's audit events, and counts those of its main thread that change the system."""
    events: list[str] = []
    names = ("os.fork", "os.remove", "socket.connect", "subprocess.Popen", "os.system", "sys.settrace", "os.chmod")
    main = threading.main_thread().ident
    sys.addaudithook(lambda name, _: events.append(name) if name in names and threading.get_ident() == main else None)
    train()
    keep(events)


@program()
def stacks_dumped() -> None:
    """Has the stack of a forward dumped by a timer of C. The forward sleeps meanwhile: where frames come and go during
    the dump, Python 3.11 crashes, also without a tracer."""

    class Sleeps(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            faulthandler.dump_traceback_later(0.02, file=file)
            time.sleep(0.1)
            faulthandler.cancel_dump_traceback_later()
            return inputs

    with tempfile.TemporaryFile("w+") as file:
        train(nn.Sequential(nn.Linear(WIDTH, WIDTH), Sleeps()))
        file.seek(0)
        stacks = file.read().split("most recent call first")
    keep([stack.count("in _call_impl") for stack in stacks if "in forward" in stack])
    keep(type(traceback.format_stack()[0]).__name__)


@program()
def tracebacks_kept() -> None:
    """Keeps exceptions of forwards, with their frames and what stands in those."""

    class Fails(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            local = "kept"
            raise ValueError(local)

    try:
        nn.Sequential(nn.Identity(), Fails())(batch())
    except ValueError as error:
        at: TracebackType | None = error.__traceback__
        names = []
        while at is not None:
            names.append(at.tb_frame.f_code.co_name)
            last = at.tb_frame
            at = at.tb_next
        keep(names[0], names[-1], names.count("_call_impl"), last.f_locals["local"])
        keep(error.__context__, error.__cause__, error.__suppress_context__)
    train()


class Raised(Exception):
    """What another thread raises."""


@program()
def raised_by_another_thread() -> None:
    """Has another thread raise exceptions of a class of its own in the main thread, and counts them."""
    main, go, seen = threading.main_thread().ident, threading.Event(), 0
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def work() -> None:
        for number in range(RAISED):
            go.wait()
            go.clear()
            time.sleep(0.0001 * (number % 17))
            raise_in(ctypes.c_ulong(main or 0), ctypes.py_object(Raised))

    thread = threading.Thread(target=work)
    thread.start()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(RAISED):
        try:
            go.set()
            while True:
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()
        except Raised:
            seen += 1
    thread.join()
    torch.manual_seed(1)  # how far it came is not the same each time
    keep(seen)


@program(records=False)
def audited_while_the_trace_is_entered(trace: Trace) -> None:
    """Refuses files, and then what `ctypes` does, while a trace is entered: training goes on without it."""
    refused: list[str] = []

    def hook(name: str, _: object) -> None:
        if refused and name.startswith(refused[0]) and threading.current_thread() is threading.main_thread():
            raise RuntimeError(name)

    with trace("imports"):
        train()
    sys.addaudithook(hook)
    for name in ("open", "ctypes."):
        with warnings.catch_warnings(action="ignore"), contextlib.ExitStack() as entered:
            refused[:] = [name]
            entered.enter_context(trace(name))
            refused.clear()
            keep(train())


@program(notes=frozenset({"surface-failed", "not-settled", "no-meta", "keeper-failed"}))
def audited_by_one_who_refuses(trace: Trace) -> None:
    """Refuses files, folders, and what `ctypes` does, in the middle and as the trace is left."""
    refused = ("open", "os.", "ctypes.", "socket.", "mmap.", "shutil.", "pathlib.", "tempfile.")
    error: list[type[Exception]] = []

    def hook(name: str, _: object) -> None:
        if error and name.startswith(refused) and threading.current_thread() is threading.main_thread():
            raise error[0](name)

    sys.addaudithook(hook)
    for kind in (RuntimeError, OSError):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(action="ignore"), trace(kind.__name__):
            for step in range(4):
                model(torch.ones(2, WIDTH)).sum().backward()
                optimizer.step()
                error[:] = [kind] if step else []
        error.clear()
        keep(model)
