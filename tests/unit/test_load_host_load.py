"""What records tell of a rank's host comes back as it was written, and nothing that is written there stops the load."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.load.tables import GcPause, HostLoad, HostMark, LinkSample, Pulse, RankRun, Throttle
from ddptrace.record import Recorder
from ddptrace.schema import SCHEMA_VERSION, Kind, Phase, StepEnd

STEP = 1_000_000
STEPS = 10


class Written:
    """A rank of ten steps of a millisecond each, all with a forward, and whatever else."""

    def __init__(self, folder: Path, **meta: object) -> None:
        self.root, rank = folder, folder / "rank-00000"
        rank.mkdir(parents=True)
        told = {"schema": SCHEMA_VERSION, "run_id": "a", "world_size": 1}
        (rank / "meta.json").write_text(json.dumps(told | {"rank": 0, "host": "node0", "pid": 1} | meta))
        self.recorder = Recorder(lambda: rank)
        self.zero = self._zero()
        (folder / "manifest.json").write_text(json.dumps(told | {"zero_unix_ns": self.zero[1]}))
        for step in range(STEPS):
            self.event(Kind.PHASE, Phase.FORWARD, at=step * STEP + 10, to=step * STEP + 500)
            partial = 1 if step == 5 else 0
            self.event(Kind.STEP, StepEnd.OPTIMIZER, at=step * STEP, to=(step + 1) * STEP, a=step, b=partial)

    def _zero(self) -> tuple[int, int]:
        """The first pair of clocks: the run's instants count from it."""
        from ddptrace.record import RecordReader

        events = RecordReader(self.root / "rank-00000").read(live=True).events
        pair = events[events["kind"] == Kind.CLOCK][0]
        return int(pair["begin"]), int(pair["a"])

    def event(
        self, kind: int, flags: int = 0, name: str = "", *, at: int, to: int | None = None, **fields: int
    ) -> None:
        """`at` and `to` count from the run's zero."""
        begin = self.zero[0]
        number = self.recorder.intern(name) if name else 0
        self.recorder.event(kind, flags, number, begin + at, begin + (at if to is None else to), **fields)

    def read(self) -> RankRun:
        self.recorder.close()
        (rank,) = read_run(self.root).ranks
        return rank


def test_each_kind_comes_back_as_written(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.event(Kind.HOST, at=STEP, to=2 * STEP, a=7, b=500, c=3)
    written.event(Kind.GC, at=100, to=2000, a=2, b=11)
    written.event(Kind.CGROUP, at=5, a=10**9, b=4, c=500_000_000)
    written.event(Kind.LINK, 0, "10.0.0.2>10.0.0.1", at=6, a=2_000_000, b=900, c=50, d=1)
    frame = written.recorder.intern("threading.py:320 in wait")
    written.event(Kind.PULSE, Phase.DATA, "data.py:12 in __getitem__", at=8, a=41, b=600, d=frame)
    written.event(Kind.PULSE, 0, at=9)
    rank = written.read()
    assert rank.load == HostLoad(
        marks=(HostMark(STEP, 2 * STEP, 500, 7, 3),),
        collections=(GcPause(100, 2000, 2),),
        throttles=(Throttle(5, 10**9, 0.5),),
        links=(LinkSample(6, "10.0.0.2", "10.0.0.1", 2_000_000, 900, 50, 1),),
        pulses=(
            Pulse(8, Phase.DATA, "data.py:12 in __getitem__", "threading.py:320 in wait", 41, 600),
            Pulse(9, None, "", "", 0, 0),
        ),
    )


def test_what_lies_in_a_step_that_is_not_whole_is_left_out_but_not_what_counts_on(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for step in (4, 5, 6):
        written.event(Kind.HOST, at=step * STEP - 200, to=(step + 1) * STEP - 200, b=step)  # it ends a moment earlier
        written.event(Kind.GC, at=step * STEP + 600, to=(step + 1) * STEP - 1, a=step)
        written.event(Kind.CGROUP, at=step * STEP + 600, a=step, c=10**9)
        written.event(Kind.LINK, 0, "a>b", at=step * STEP + 600, a=step)
    load = written.read().load
    assert [mark.cpu_ns for mark in load.marks] == [4, 6]
    assert [one.generation for one in load.collections] == [4, 6]
    assert [one.throttled_ns for one in load.throttles] == [4, 5, 6]
    assert [one.sent_nbytes for one in load.links] == [4, 5, 6]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.HOST, {"to": -5}),
        (Kind.HOST, {"to": 2**62}),
        (Kind.HOST, {"to": STEP, "a": -1}),
        (Kind.HOST, {"to": STEP, "b": 2**60}),
        (Kind.HOST, {"to": STEP, "c": -1}),
        (Kind.GC, {"to": -5}),
        (Kind.GC, {"to": 2**62}),
        (Kind.GC, {"to": 5, "a": -(2**63)}),
        (Kind.CGROUP, {"a": -1, "c": 1}),
        (Kind.CGROUP, {"a": 1, "c": 0}),
        (Kind.CGROUP, {"a": 2**62, "c": 1}),
        (Kind.LINK, {"name": "a>b", "a": -1}),
        (Kind.LINK, {"name": "a>b", "b": 2**62}),
        (Kind.LINK, {"name": "no two addresses"}),
        (Kind.LINK, {}),
    ],
)
def test_a_record_that_cannot_be_true_is_passed_over(tmp_path: Path, kind: Kind, fields: dict[str, Any]) -> None:
    written = Written(tmp_path)
    written.event(kind, at=0, **fields)
    assert written.read().load == HostLoad()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_numbers_are_the_run_is_analyzed(tmp_path: Path, seed: int) -> None:
    numbers, written = random.Random(seed), Written(tmp_path)
    names = ["", "a>b", ">", "ü" * 60, "10.0.0.1>10.0.0.2"]
    for _ in range(300):
        at, to, a, b, c = (numbers.choice([numbers.getrandbits(20), _any_int64(numbers)]) for _ in range(5))
        kind = numbers.choice([Kind.HOST, Kind.GC, Kind.CGROUP, Kind.LINK, Kind.PULSE, Kind.PHASE])
        number = numbers.choice([written.recorder.intern(numbers.choice(names)) if numbers.random() < 0.9 else 9999])
        begin = written.zero[0] + at if abs(at) < 2**40 else at
        d = numbers.getrandbits(32)
        written.recorder.event(kind, numbers.getrandbits(8), number, begin, to, a, b, c, d)
    rank = written.read()
    assert len(rank.steps) == STEPS - 1
    ddptrace.analyze(tmp_path)


def _any_int64(numbers: random.Random) -> int:
    found: int = struct.unpack("<q", numbers.randbytes(8))[0]
    return found


@pytest.mark.parametrize(
    ("meta", "clock"),
    [
        ({"boot_id": "b1", "time_namespace": "time:[4026531834]"}, "b1 time:[4026531834]"),
        ({"boot_id": "b1"}, "b1"),
        ({"time_namespace": "time:[4026531834]"}, ""),
        ({"boot_id": 7, "time_namespace": []}, ""),
        ({}, ""),
    ],
)
def test_the_clock_is_named_by_the_machines_start_and_the_namespace_of_time(
    tmp_path: Path, meta: dict[str, Any], clock: str
) -> None:
    assert Written(tmp_path, **meta).read().clock == clock
