"""Rank 0 serves the store through which ranks tell each other what is wrong. Where it fails, ends or stops, the other
rank is told in time, and truly. Without a launcher: torchrun would serve the store itself."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from tests.launch import PROGRAMS, environment
from tests.programs.reducer_store import TIMEOUT_S

IN_TIME_S = TIMEOUT_S + 5 + 3
"""Five seconds more are documented; three for two processes that share the machine with others."""

Told = dict[str, Any]


def start(case: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    program = [sys.executable, str(PROGRAMS / "reducer_store.py"), case]
    return [
        subprocess.Popen(program, env=job | {"RANK": str(rank)}, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]  # fmt: skip


def told(rank: subprocess.Popen[str]) -> Told:
    try:
        out, _ = rank.communicate(timeout=60)
    finally:
        rank.kill()
    said: Told = json.loads(out.splitlines()[-1]) if out.strip() else {"said": "", "seconds": 0.0}
    return said


def told_beside_a_stopped_rank(case: str) -> Told:
    first, last = start(case)
    try:
        return told(last)
    finally:
        first.kill()
        first.communicate()


def test_a_rank_that_waits_for_a_bucket_ends_in_time_though_the_store_is_silent() -> None:
    last = told_beside_a_stopped_rank("first_rank_stops_in_training")
    assert "the process that holds the store does not answer: it may be stopped" in last["said"]
    assert TIMEOUT_S <= last["seconds"] < IN_TIME_S


def test_a_rank_that_makes_a_model_ends_in_time_though_the_store_is_silent() -> None:
    last = told_beside_a_stopped_rank("first_rank_stops_before_the_second_model")
    came = "came to the construction of the model"
    waited = "waited 4 s for the construction of the model: rank 0's lines"
    assert any(f"{how}, and the process that holds the store does not answer" in last["said"] for how in (came, waited))
    assert TIMEOUT_S <= last["seconds"] < IN_TIME_S


def test_a_store_that_is_silent_for_less_than_the_timeout_ends_nothing() -> None:
    first, last = start("first_rank_stops_for_a_while")
    while "T" not in state_of(first):
        assert first.poll() is None
        time.sleep(0.05)
    time.sleep(2.5)
    first.send_signal(signal.SIGCONT)
    assert [told(rank)["said"] for rank in (first, last)] == ["trained", "trained"]


def test_the_first_rank_raises_only_when_the_others_have_read_the_verdict() -> None:
    first, last = map(told, start("first_rank_raises_first"))
    assert "'first.weight' of float32, shape (20, 16)" in first["said"]
    assert last["said"] == first["said"]


def test_what_the_first_rank_gave_up_for_is_read_before_the_store_ends_with_it() -> None:
    first, last = map(told, start("first_rank_gives_up"))
    assert first["said"].startswith("Rank 0 began a forward while the last backward is unfinished")
    assert "rank 0 said: Rank 0 began a forward while the last backward is unfinished" in last["said"]
    assert max(first["seconds"], last["seconds"]) < TIMEOUT_S


def test_a_store_that_is_gone_is_called_gone_at_once() -> None:
    _, last = map(told, start("first_rank_ends_before_the_second_model"))
    assert "the construction of the model" in last["said"]  # which part of it depends on when the process is gone
    assert "and the process that holds the store is gone" in last["said"]
    assert last["seconds"] < TIMEOUT_S


def state_of(process: subprocess.Popen[str]) -> str:
    """As in /proc: R running, S sleeping, T stopped."""
    with open(f"/proc/{process.pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]
