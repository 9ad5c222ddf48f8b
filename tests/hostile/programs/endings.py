"""How a program ends: by itself, by an exception, by a signal, in a thread, or not where it seems to."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import batch, ddp, join, keep_error, loss_of, network, sgd, steps, train

Trace = Callable[..., AbstractContextManager[Any]]


class Acts(nn.Module):
    """Does something in its third forward."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.body, self.calls, self.action = network(), 0, action

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            self.action()
        return self.body(inputs)  # type: ignore[no-any-return]


def in_backward(model: nn.Module, action: Callable[[], object]) -> nn.Module:
    """Has it do something in its third backward."""
    calls: list[int] = []

    def act(_: torch.Tensor) -> None:
        calls.append(0)
        if len(calls) == 3:
            action()

    next(model.parameters()).register_hook(act)
    return model


@program(ranks=2, ends=True)
def falls_off_the_end() -> None:
    """Ends by itself, and leaves the rest to Python's shutdown."""
    train(ddp())
    dist.destroy_process_group()
    print("over")


@program(code=3, ends=True)
def sys_exit() -> None:
    """Ends by sys.exit between two steps."""
    train()
    print("leaving")
    sys.exit(3)


@program(code=1, ends=True)
def sys_exit_with_words() -> None:
    """Ends by sys.exit with a sentence, in the middle of a step."""
    for step in steps(network()):
        if step == 2:
            sys.exit("that is enough")


@program(code=4, ends=True)
def sys_exit_in_forward() -> None:
    """Ends by sys.exit inside a forward."""
    train(Acts(lambda: sys.exit(4)))


@program(code=5, ends=True)
def sys_exit_in_backward() -> None:
    """Ends by sys.exit inside a hook of backward."""
    train(in_backward(network(), lambda: sys.exit(5)))


@program(code=6, ends=True)
def sys_exit_in_an_update() -> None:
    """Ends by sys.exit inside an optimizer's hook."""
    model = network()
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *_: sys.exit(6))
    train(model, optimizer)


@program(code=(7, 7), ranks=2)
def hard_exit() -> None:
    """Ends by os._exit in the middle; what stands in buffers is lost."""
    for step in steps(ddp()):
        print("never seen")
        if step == 2:
            os._exit(7)


@program(code=8)
def hard_exit_in_forward() -> None:
    """Ends by os._exit inside a forward."""
    train(Acts(lambda: os._exit(8)))


@program(code=9)
def hard_exit_in_backward() -> None:
    """Ends by os._exit inside a hook of backward."""
    train(in_backward(network(), lambda: os._exit(9)))


@program(code=10)
def hard_exit_in_a_thread() -> None:
    """Ends by os._exit in a thread, while the main thread waits."""
    train()
    threading.Thread(target=lambda: os._exit(10)).start()
    time.sleep(30)


@program(ends=True)
def sys_exit_in_a_thread() -> None:
    """Calls sys.exit in a thread, which ends that thread alone."""
    thread = threading.Thread(target=lambda: train(Acts(lambda: sys.exit(11))))
    thread.start()
    thread.join()
    train()


@program(code=1, ends=True)
def exception_in_forward() -> None:
    """Raises inside a forward, and nobody catches it."""

    def refuse() -> None:
        raise ZeroDivisionError("in forward")

    train(Acts(refuse))


@program(code=(1, 1), ranks=2, ends=True)
def exception_on_both_ranks() -> None:
    """Raises after a step on both ranks, with notes and a cause."""
    train(ddp())
    dist.barrier()
    dist.destroy_process_group()
    error = ValueError("the cause")
    late = RuntimeError("the end")
    late.add_note("a note")
    raise late from error


@program(code=1, ends=True)
def exception_in_backward() -> None:
    """Raises inside a hook of backward, and nobody catches it."""

    def refuse() -> None:
        raise LookupError("in backward")

    train(in_backward(network(), refuse))


@program(code=1, ends=True)
def exception_group() -> None:
    """Ends with a group of exceptions."""
    train()
    raise ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [TypeError("two")])])


@program(code=1, ends=True)
def exception_that_cannot_be_told() -> None:
    """Ends with an exception whose words raise."""

    class Untold(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    train()
    raise Untold


@program(ends=True)
def exceptions_caught_outside(trace: Trace) -> None:
    """Leaves traces by exceptions, which it catches outside."""
    for number, error in enumerate((ValueError("one"), KeyboardInterrupt(), SystemExit(3), GeneratorExit())):
        try:
            with trace(f"run-{number}"):
                train(None, None, 2)
                raise error
        except BaseException as caught:
            keep(caught is error, type(caught).__name__, str(caught))
    train()


@program(code=-signal.SIGINT, ends=True)
def interrupted() -> None:
    """Ends by KeyboardInterrupt in a forward."""
    train(Acts(lambda: os.kill(os.getpid(), signal.SIGINT)))


@program()
def interrupted_and_caught() -> None:
    """Is interrupted in forward, backward, update and sleep, catches it, and trains on."""
    interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    model = network()
    optimizer = sgd(model)
    keep_error(train, Acts(interrupt))
    keep_error(train, in_backward(network(), interrupt))
    handle = optimizer.register_step_post_hook(interrupt)
    keep_error(train, model, optimizer)
    handle.remove()
    train(model, optimizer)


@program(code=-signal.SIGTERM)
def terminated() -> None:
    """Is terminated in the middle of a step, without a handler."""
    for step in steps(network()):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@program(code=(-signal.SIGKILL, -signal.SIGKILL), ranks=2)
def killed() -> None:
    """Is killed in the middle of a step."""
    for step in steps(ddp()):
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)


@program(code=-signal.SIGABRT)
def aborted() -> None:
    """Aborts, with Python's fault handler on."""
    faulthandler.enable(all_threads=False)  # there is one more in a trace
    train()
    os.abort()


@program(code=-signal.SIGSEGV)
def crashed() -> None:
    """Reads where no memory is, with Python's fault handler on."""
    faulthandler.enable(all_threads=False)  # there is one more in a trace
    train()
    faulthandler._sigsegv()  # type: ignore[attr-defined]


@program(code=12, ends=True)
def terminated_with_a_handler() -> None:
    """Ends by sys.exit in its handler of SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(12))
    for step in steps(network()):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@program(ranks=2)
def handler_that_communicates() -> None:
    """Communicates in the handlers of signals that come in forward, backward and update."""
    model = Acts(lambda: signal.raise_signal(signal.SIGUSR1))
    values: list[torch.Tensor] = []

    def communicate(*_: object) -> None:
        value = torch.ones(3)
        dist.all_reduce(value)
        values.append(value)

    signal.signal(signal.SIGUSR1, communicate)
    wrapped = ddp(model)
    optimizer = sgd(wrapped)
    optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGUSR1))
    train(wrapped, optimizer)
    keep(*values)


@program()
def handler_that_trains() -> None:
    """Trains a model inside a signal's handler, in the middle of another forward."""
    signal.signal(signal.SIGUSR1, lambda *_: keep(type(train(None, None, 2)).__name__))
    train(Acts(lambda: signal.raise_signal(signal.SIGUSR1)))


@program()
def handlers_at_any_time() -> None:
    """Is interrupted by a timer a thousand times a second."""
    calls: list[int] = []
    signal.signal(signal.SIGALRM, lambda *_: calls.append(0))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for _ in range(10):
        train()
    signal.setitimer(signal.ITIMER_REAL, 0)
    keep(bool(calls))


@program()
def alarmed() -> None:
    """Raises out of the handler of an alarm, which comes while it sleeps inside a forward."""

    def late(*_: object) -> None:
        raise TimeoutError("too late")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    keep_error(train, Acts(lambda: time.sleep(30)))
    signal.setitimer(signal.ITIMER_REAL, 0)
    train()


@program()
def woken_up_by_signals() -> None:
    """Has Python write signals into a pipe of its own, and waits for one with others blocked."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    keep(signal.set_wakeup_fd(write))
    signal.signal(signal.SIGUSR1, lambda *_: None)
    train(Acts(lambda: signal.raise_signal(signal.SIGUSR1)))
    keep(os.read(read, 100))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.raise_signal(signal.SIGUSR2)
    train()
    keep(signal.sigwait([signal.SIGUSR2]), signal.sigpending())


@program(code=(13, 13), ranks=2, ends=True)
def at_exit() -> None:
    """Communicates, trains, prints and raises in functions that run at exit."""
    model = ddp()

    def communicate() -> None:
        value = torch.ones(2)
        dist.all_reduce(value)
        print("reduced", value.tolist())
        dist.destroy_process_group()

    def refuse() -> None:
        raise ValueError("at exit")

    atexit.register(communicate)
    atexit.register(refuse)
    atexit.register(train, model, None, 2)
    train(model)
    sys.exit(13)


@program(ends=True)
def a_thread_goes_on() -> None:
    """Trains on in a thread that Python waits for at its end, and in one that it does not wait for."""

    def train_on() -> None:
        time.sleep(0.7)  # by then the main thread has left the trace, and all else
        train()
        print("trained on")

    train()
    threading.Thread(target=train_on).start()
    threading.Thread(target=lambda: time.sleep(60), daemon=True).start()


def traced_steps(traced: AbstractContextManager[Any]) -> Iterator[nn.Module]:
    """Enters a trace when it is first asked, and leaves it when it is dropped."""
    with traced:
        model = network()
        while True:
            yield train(model, None, 1)


@program()
def a_generator_dropped(trace: Trace) -> None:
    """Enters the trace in a generator that is dropped before its end."""
    generator = traced_steps(trace())
    keep(type(next(generator)), type(next(generator)))
    del generator
    train()


@program(ends=True, leaves=False)
def a_generator_never_finished(trace: Trace) -> None:
    """Enters the trace in a generator that is alive when the process ends."""
    global _forgotten
    _forgotten = traced_steps(trace())
    keep(type(next(_forgotten)))


_forgotten: Iterator[nn.Module]


@program(ends=True, code=1)
def hooks_of_the_interpreter() -> None:
    """Has its own hooks for exceptions: of the program, of threads, of those that nobody can catch."""
    sys.excepthook = lambda kind, error, _: print("mine", kind.__name__, error)
    threading.excepthook = lambda args: print("in a thread", args.exc_type.__name__)
    sys.unraisablehook = lambda args: print("unraisable", args.exc_type.__name__)

    class Raises:
        def __del__(self) -> None:
            raise ValueError("in a finalizer")

    thread = threading.Thread(target=train, args=(Acts(lambda: 1 / 0),))
    thread.start()
    thread.join()
    raises = Raises()
    del raises
    train()
    raise KeyError("the end")


@program(ranks=2, code=(0, 1), ends=True)
def one_rank_fails() -> None:
    """Fails on one rank; the other finds out in the next collective, and ends well."""
    rank = join()
    model = ddp()
    train(model, None, 2)
    if rank == 1:
        raise RuntimeError("this rank fails")
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        keep(type(error).__name__)
    os._exit(0)


@program(ends=True)
def replaced_by_another_program() -> None:
    """Replaces itself by another program in the middle of a step."""
    for step in steps(network()):
        if step == 2:
            print("before", flush=True)
            os.execv("/bin/echo", ["echo", "after"])


@program(code=1, ends=True)
def warnings_as_errors() -> None:
    """Makes errors of all warnings, and ends with one."""
    warnings.simplefilter("error")
    train()
    model = network()
    keep_error(torch.optim.lr_scheduler.StepLR(sgd(model), 1).step)
    train(model)
    warnings.warn("the last", RuntimeWarning, stacklevel=1)


@program()
def warnings_counted() -> None:
    """Records all warnings of a training."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
        torch.optim.lr_scheduler.StepLR(sgd(network()), 1).step()
        loss_of(network()).backward(create_graph=True)
        batch().T.T.unsqueeze(0).T  # noqa: B018 # deprecated
    keep([f"{one.category.__name__}: {str(one.message)[:60]}" for one in caught])


@program(flags=("-W", "error", "-X", "dev"))
def interpreter_in_development_mode() -> None:
    """Runs in Python's development mode, with all warnings as errors from the first line on."""
    train()
