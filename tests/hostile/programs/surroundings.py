"""What a program may meet on its machine, and what it may do to itself: disks, limits, servers of forks, contexts."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import errno
import faulthandler
import gc
import io
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, WIDTH, batch, ddp, join, keep_error, loss_of, network, sgd, steps, train
from tests.small_disk import fill, mounted

Trace = Callable[..., AbstractContextManager[Any]]


def folder() -> Path:
    return Path(os.environ["HOSTILE_FOLDER"])


@program(records=False)
def disk_full_before_and_inside(trace: Trace) -> None:
    """Has no room on the disk when the trace begins, and fills it inside another."""
    with mounted(folder(), 32) as disk:
        fill(disk)
        with warnings.catch_warnings(action="ignore"), trace("disk/before"):
            train()
        (disk / "filler").unlink()
        with trace("disk/inside"):
            train()
            fill(disk)
            for _ in range(3):
                train()
            with contextlib.suppress(OSError):
                (disk / "checkpoint").write_bytes(bytes(1 << 20))
            (disk / "filler").unlink()
            train()
            keep((disk / "checkpoint").write_bytes(bytes(1 << 20)))


@program()
def server_of_forks() -> None:
    """Computes in processes that a server forks, which it starts in the middle of a training."""
    context, main = multiprocessing.get_context("forkserver"), sys.modules["__main__"]
    file, main.__file__ = main.__file__, None  # a process of the pool would import it, with all of torch
    for step in steps(network(), None, 3):
        if step == 1:
            with context.Pool(1) as pool:
                keep(pool.map(abs, [-1, 2]))
    main.__file__ = file


@program()
def modes_entered_before(trace: Trace) -> None:
    """Is inside modes, a default device and hooks on saved tensors before the trace, and leaves them inside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.seen += not str(func).startswith("profiler.")
            return func(*args, **(kwargs or {}))

    mode = Counting()
    mode.__enter__()
    device = torch.device("cpu")
    device.__enter__()  # a function mode
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x + 0, lambda x: x)
    hooks.__enter__()
    with trace():
        train()
        hooks.__exit__()
        device.__exit__(None, None, None)
        mode.__exit__(None, None, None)
        train()
    keep(Counting.seen)


@program()
def attributes_of_modules_overridden() -> None:
    """Overrides what Python asks of a module: attributes, hash, equality, truth, length; and counts."""
    counts = dict.fromkeys(("set", "get", "hash", "equal", "truth", "length"), 0)

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def __setattr__(self, name: str, value: Any) -> None:
            counts["set"] += 1
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            counts["get"] += 1
            return super().__getattr__(name)

        def __hash__(self) -> int:
            counts["hash"] += 1
            return 1

        def __eq__(self, other: object) -> bool:
            counts["equal"] += 1
            return True

        def __bool__(self) -> bool:
            counts["truth"] += 1
            raise ValueError("neither")

        def __len__(self) -> int:
            counts["length"] += 1
            return 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(inputs)  # type: ignore[no-any-return]

    train(Odd())
    keep(counts)


@program()
def limits_of_the_process(trace: Trace) -> None:
    """May open no further file, write nothing, dump no core and lock no memory when a trace begins."""
    with trace("before"):
        train()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (0, hard))
        model = network()
        try:
            with warnings.catch_warnings(action="ignore"), trace(f"limit-{limit}"):
                loss_of(model).backward()
        finally:
            resource.setrlimit(limit, (soft, hard))
        keep(model)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


@program(leaves=False)
def folder_gone(trace: Trace) -> None:
    """Is in a folder that is removed before the trace begins."""
    gone = folder() / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with trace():
        train()
        keep_error(os.getcwd)
    os.chdir("/")


@program()
def environment_cleared() -> None:
    """Clears its environment, in Python and below it."""
    kept = dict(os.environ)
    os.environ.clear()
    train()
    os.environ.update(kept)
    train()


@program()
def signals_blocked(trace: Trace) -> None:
    """Blocks all signals, has some pending when the trace begins and ends, and finds them pending after it."""
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.kill(os.getpid(), signal.SIGUSR1)
    with trace("first"):
        train()
        keep(sorted(signal.sigpending()), seen)
    keep(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    with trace("second"):
        train()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        keep(seen)
    keep(sorted(signal.sigpending()), seen)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@program()
def handlers_before_inside_and_after(trace: Trace) -> None:
    """Sets handlers of each kind before the trace and inside, and finds each in its place."""

    class Handler:
        def __call__(self, number: int, frame: object) -> None:
            seen.append(number)

        def method(self, number: int, frame: object) -> None:
            seen.append(-number)

    seen: list[int] = []
    one, numbers = Handler(), (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM)
    kinds: list[Any] = [one, one.method, signal.SIG_IGN, seen.append]
    before = [signal.signal(number, kind) for number, kind in zip(numbers, kinds, strict=True)]
    with trace():
        train()
        keep([signal.getsignal(number) is kind for number, kind in zip(numbers, kinds, strict=True)])
        signal.signal(signal.SIGHUP, one)
        signal.raise_signal(signal.SIGHUP)
        train()
    kinds[2] = one
    keep([signal.getsignal(number) == kind for number, kind in zip(numbers, kinds, strict=True)])
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)
    keep(seen)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@program()
def trace_inside_a_loop_of_events(trace: Trace) -> None:
    """Enters and leaves the trace in a coroutine, beside a handler of the loop, whose signal comes as it leaves."""
    seen: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "heard")
        with trace("loop"):
            for _ in range(STEPS):
                train(None, None, 1)
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.01)
        keep(seen, loop.remove_signal_handler(signal.SIGUSR1))

    asyncio.run(work())


@program()
def faults_and_memory_traced(trace: Trace) -> None:
    """Has the fault handler and tracemalloc on before the trace, and ends both inside."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=(file := io.FileIO(folder() / "stacks", "w")))
    tracemalloc.start(5)
    with trace():
        train()
        os.kill(os.getpid(), signal.SIGUSR1)
        keep(faulthandler.is_enabled(), tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
        tracemalloc.stop()
        faulthandler.disable()
        train()
    keep(faulthandler.unregister(signal.SIGUSR1), (folder() / "stacks").stat().st_size > 0)
    file.close()


@program()
def hooks_removed_within_hooks() -> None:
    """Removes hooks within themselves, adds others there, and replaces the module that runs."""
    model = network()

    def once(module: nn.Module, *given: Any) -> None:
        handle.remove()
        handles.append(module.register_forward_hook(lambda *_: handles.pop().remove()))

    class Replaced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.body = copy.deepcopy(self.body)
            other = copy.deepcopy(self)
            return self.body(inputs) + other.body(inputs).detach()  # type: ignore[no-any-return]

    handles: list[Any] = []
    handle = model.register_forward_pre_hook(once)
    train(model)
    keep(len(handles), len(model._forward_hooks))
    replaced = Replaced()
    for _ in range(3):
        loss_of(replaced).backward()
    keep(replaced)


@program(ranks=2)
def devices_and_determinism() -> None:
    """Trains DDP under a default device, deterministic algorithms, anomaly mode and saved tensors on the CPU."""
    model = ddp()
    torch.set_default_device("cpu")
    torch.use_deterministic_algorithms(True)
    with torch.autograd.set_detect_anomaly(True, check_nan=False), torch.autograd.graph.save_on_cpu():
        train(model)
    torch.use_deterministic_algorithms(False)
    torch.set_default_device(None)
    train(model)


@program()
def weak_references_only() -> None:
    """Refers to its modules weakly, drops them in their own forward, and freezes the collector."""
    gc.freeze()
    alive: list[bool] = []
    for _ in range(3):
        model: Any = network()
        weak = weakref.ref(model, lambda _: alive.append(False))
        proxy = weakref.proxy(model)
        nn.Module.__call__(proxy, batch()).sum().backward()
        proxy(batch()).sum().backward()
        keep(model)
        del model, proxy
        alive.append(weak() is not None)
    gc.unfreeze()
    gc.collect()
    from tests.hostile import kept

    kept.kept_modules().clear()
    keep(len(alive))
    train()


@program()
def packaged(trace: Trace) -> None:
    """Packs a model into an archive inside the trace, and trains what comes out of it."""
    from torch.package import PackageExporter, PackageImporter

    archive = folder() / "model.pt"
    with trace():
        with PackageExporter(archive) as exporter:
            exporter.extern("**")
            exporter.save_pickle("model", "model.pkl", network())
        loaded = PackageImporter(archive).load_pickle("model", "model.pkl")
        train(loaded)
    del loaded, exporter
    gc.collect()


@program()
def in_contexts_of_their_own(trace: Trace) -> None:
    """Enters the trace in one context and leaves it in another, with variables and threads of both."""
    number = contextvars.ContextVar("number", default=0)
    entered = trace()
    contextvars.copy_context().run(lambda: (number.set(1), entered.__enter__()))
    train()
    thread = threading.Thread(target=contextvars.copy_context().run, args=(train,))
    thread.start()
    thread.join()
    contextvars.copy_context().run(lambda: (number.set(2), entered.__exit__(None, None, None)))
    keep(number.get())


@program(ranks=2, profiled=False)  # torch's profiler stops only in the thread that has started it
def left_in_another_thread(trace: Trace) -> None:
    """Enters the trace in one thread, and leaves it in another while the main thread communicates."""
    join()
    entered = trace()
    for action in (entered.__enter__, lambda: entered.__exit__(None, None, None)):
        thread = threading.Thread(target=action)
        thread.start()
        dist.all_reduce(torch.ones(2))
        thread.join()
        train(ddp())


@program()
def loaded_beside_a_trace(trace: Trace) -> None:
    """Has persistent workers that were forked before the trace, and goes on with them inside and after."""
    data = TensorDataset(torch.arange(64.0).reshape(8, WIDTH))
    loader = DataLoader(
        data,
        batch_size=4,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
        generator=torch.Generator(),
    )
    model = network()

    def epoch() -> None:
        for (inputs,) in loader:
            model(inputs).sum().backward()
        keep(model)

    epoch()
    with trace():
        epoch()
        epoch()
    epoch()


@program()
def gradients_scaled_on_the_cpu() -> None:
    """Trains under autocast with a scaler for the CPU and averaged weights, updates them in backward's own hooks."""
    model = network()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()]
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        averaged.update_parameters(model)
        keep(loss)
    for handle in handles:
        handle.remove()
    scaler, optimizer = torch.amp.GradScaler("cpu"), sgd(model)
    for number in range(STEPS):
        scaler.scale(loss_of(model) * (float("inf") if number == 2 else 1)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        keep(scaler.get_scale())
    keep(model, averaged)


@program()
def interrupted_while_it_leaves(trace: Trace) -> None:
    """Is interrupted again while an interrupt leaves the trace, and trains on."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            with trace("first"):
                train()
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            time.sleep(0.1)
    signal.signal(signal.SIGALRM, before)
    with trace("second"):
        train()


@program()
def errors_of_every_call(trace: Trace) -> None:
    """Has `os.write`, `mmap` and `open` fail by errors of the system in the middle of the training."""
    import mmap

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(errno.EIO, "the disk is broken")

    originals = os.write, mmap.mmap, os.open, os.rename, os.fsync
    with warnings.catch_warnings(action="ignore"), trace():
        train()
        mmap.mmap = os.rename = os.fsync = refuse  # type: ignore[assignment, misc]
        train()
        _, mmap.mmap, _, os.rename, os.fsync = originals  # type: ignore[misc]
        train()
