"""What the keeper looks at beside the records: each by itself, and never at the cost of the training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.capture import surface
from ddptrace.capture.host import looks
from ddptrace.capture.host.host_load import Held, Quota
from ddptrace.capture.host.looks import Carried, Links, Pulse
from ddptrace.capture.session import SURFACES
from ddptrace.load.run import read_run
from ddptrace.load.tables import LinkSample, Run, Throttle
from ddptrace.record import recorder

PAIR = "10.0.0.2>10.0.0.1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "KEEPER_PERIOD_S", 0.05)


def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """More from look to look."""
    seen = {"links": 0, "quota": 0}

    def carried(_: Links) -> dict[str, Carried]:
        seen["links"] += 1
        return {PAIR: Carried(seen["links"] * 10**7, 10**6, 40_000, 2**40)}

    def held(_: Quota) -> Held:
        seen["quota"] += 1
        return Held(seen["quota"] * 10**6, seen["quota"], 5 * 10**8)

    for look in ("look", "look_in_short"):
        monkeypatch.setattr(Links, look, carried)
    monkeypatch.setattr(Quota, "look", held)


def traced(folder: Path, seconds: float = 0.4) -> Run:
    with ddptrace.trace(folder / "run"):
        time.sleep(seconds)
    return read_run(folder / "run")


def test_counts_are_told_at_the_end_however_short_the_trace_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting(monkeypatch)
    load = traced(tmp_path).ranks[0].load
    sample, last = load.links[-1], load.throttles[-1]
    assert sample == LinkSample(sample.at_ns, "10.0.0.2", "10.0.0.1", len(load.links) * 10**7, 10**6, 40_000, 2**32 - 1)
    assert len(load.throttles) >= 2  # of a quota the begin counts as well
    assert last == Throttle(last.at_ns, len(load.throttles) * 10**6, 0.5)


def test_links_and_quota_are_looked_at_less_often_than_the_keeper_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting(monkeypatch)
    load = traced(tmp_path, 1.2).ranks[0].load
    assert len(load.links) == 2  # the keeper's first beat, and the end
    assert len(load.throttles) == 3  # and the begin


def test_what_takes_long_is_looked_at_the_less(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def burn() -> None:
        looked.append(time.thread_time())
        while time.thread_time() < looked[-1] + 0.002:
            pass

    seldom = looks._seldom(burn, 0.0)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        seldom()
        time.sleep(0.01)
    assert len(looked) == 1


@pytest.mark.parametrize(("owner", "name"), [(Links, "links"), (Quota, "quota"), (Pulse, "pulse")])
def test_one_that_fails_warns_once_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    def broken(_: object) -> None:
        raise LookupError("planted")

    counting(monkeypatch)
    monkeypatch.setattr(owner, "look", broken)
    with pytest.warns(RuntimeWarning, match=f"stopped watching {name}: LookupError: planted") as warned:
        run = traced(tmp_path)
    assert sum("planted" in str(one.message) for one in warned) == 1
    load = run.ranks[0].load
    assert (bool(load.links), bool(load.throttles)) == (name != "links", name != "quota")
    assert "surface-failed" in {finding.code for finding in run.findings}


@pytest.mark.parametrize("owner", [Links, Quota])
def test_a_moment_in_which_the_system_tells_nothing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any
) -> None:
    def full(_: object) -> None:
        raise OSError(24, "Too many open files")

    counting(monkeypatch)
    for look in ("look", "look_in_short"):
        monkeypatch.setattr(owner, look, full, raising=hasattr(owner, look))
    load = traced(tmp_path).ranks[0].load
    assert (bool(load.links), bool(load.throttles)) == (owner is not Links, owner is not Quota)


def test_another_system_than_linux_is_a_blind_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch)
    monkeypatch.setattr(looks.sys, "platform", "darwin")
    run = traced(tmp_path)
    load = run.ranks[0].load
    assert not load.links and not load.throttles
    assert surface.UNSEEN_WITHOUT_LINUX in run.manifest["blind_spots"]


def test_what_is_looked_at_is_listed_as_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(monkeypatch)
    run = traced(tmp_path, 0)
    assert set(looks.SURFACES) <= set(SURFACES)
    assert surface.UNSEEN_WITHOUT_LINUX not in run.manifest["blind_spots"]
