"""Watching a run takes a bounded share of a processor, however much there is to read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddptrace.cli import watch
from ddptrace.cli.watch import MOST_OF_A_CORE, TICK_S, Watcher
from ddptrace.live.watched import Watched


class Costly(Watcher):
    """A look that takes so much processor time."""

    cost_s = 0.0
    looks = 0

    def look(self, *, whole: bool = False) -> None:
        until_s = time.process_time() + self.cost_s
        while time.process_time() < until_s:
            pass
        self.looks += 1


@pytest.fixture
def watcher(tmp_path: Path) -> Costly:
    return Costly(Watched(tmp_path), "run/")


def test_the_next_look_comes_so_late_that_the_share_is_kept(watcher: Costly) -> None:
    watcher.cost_s = 0.3
    watcher.look_when_due(0.1)
    assert 0.3 / MOST_OF_A_CORE <= watcher.every_s < 0.5 / MOST_OF_A_CORE
    assert watcher.view(every_s=watcher.every_s).every_s == watcher.every_s
    watcher.look_when_due(0.1)
    assert watcher.looks == 1


def test_a_cheap_look_is_taken_at_every_tick(watcher: Costly, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher.look_when_due(TICK_S)
    assert watcher.every_s == TICK_S
    now_s = time.monotonic()
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s + TICK_S)
    watcher.look_when_due(TICK_S)
    assert watcher.looks == 2
