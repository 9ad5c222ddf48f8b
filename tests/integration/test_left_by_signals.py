"""A signal's handler that raises while a trace is entered or left ends neither half way, and its exception arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.capture import session
from ddptrace.load.run import read_run
from tests.launch import PROGRAMS, environment

TRIALS = 60


class Interrupted(Exception):
    pass


def train() -> None:
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()


def test_a_handler_that_raises_at_any_moment_leaves_no_patch_no_file_and_no_thread(tmp_path: Path) -> None:
    asked = [sys.executable, PROGRAMS / "left_by_signals.py", tmp_path, str(TRIALS)]
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == [] and told["raised"] > TRIALS / 2


@pytest.fixture
def handled() -> Any:
    """Handlers of three signals, which note them; the first two raise as well."""
    came: list[tuple[int, str]] = []

    def handle(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        came.append((number, frame.f_code.co_name))
        if number != signal.SIGUSR2:
            raise Interrupted(number)

    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    before = [signal.signal(number, handle) for number in numbers]
    yield came
    assert [signal.getsignal(number) for number in numbers] == [handle] * 3
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def send_all() -> None:
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGUSR2):
        os.kill(os.getpid(), number)


def test_all_handlers_run_once_the_trace_is_left_each_once_with_the_programs_frame(
    tmp_path: Path, handled: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, backward, settle = torch.nn.Module.__call__, torch.autograd.backward, session.Session._settle_in_time
    monkeypatch.setattr(session.Session, "_settle_in_time", lambda self: (send_all(), settle(self)))
    with pytest.raises(Interrupted) as raised:
        with ddptrace.trace(tmp_path / "run"):
            train()
            raise LookupError("the program's own")
    here = sys._getframe().f_code.co_name
    assert sorted(handled) == sorted((number, here) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM))
    contexts = [type(raised.value.__context__), type(raised.value.__context__.__context__)]
    assert contexts == [Interrupted, LookupError]  # as where each is raised while the one before is under way
    assert (torch.nn.Module.__call__, torch.autograd.backward) == (original, backward)
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.clean and len(rank.phases) == 2


def test_a_handler_that_raises_while_the_trace_is_entered_ends_the_trace(
    tmp_path: Path, handled: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    backward, install = torch.autograd.backward, session.Session._install
    monkeypatch.setattr(session.Session, "_install", lambda self: (os.kill(os.getpid(), signal.SIGALRM), install(self)))
    with pytest.raises(Interrupted), ddptrace.trace(tmp_path / "run"):
        handled.append((0, "the body runs"))
    assert [number for number, _ in handled] == [signal.SIGALRM]
    assert torch.autograd.backward is backward
    monkeypatch.undo()
    with ddptrace.trace(tmp_path / "next"):
        train()
    assert read_run(tmp_path / "next").ranks[0].clean


def test_a_trace_in_another_thread_leaves_handlers_alone(tmp_path: Path, handled: list[tuple[int, str]]) -> None:
    def work() -> None:
        with ddptrace.trace(tmp_path / "run"):
            train()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert read_run(tmp_path / "run").ranks[0].clean and handled == []
