"""A rank's folder keeps to its bound whatever a program makes without end, and what did not fit is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ddptrace.load.records.rank_run import Recorded, rank_run
from ddptrace.record import Recorder, RecordReader, store
from ddptrace.record.thin import Wanted, thinned
from ddptrace.schema import EVENT_DTYPE, GUARD, RECORD_NBYTES, Kind
from ddptrace.trace_options import LEAST_NBYTES
from tests.unit.kept_records import BEGIN, give_way, recorder_in, settled, train

ROUNDS = 8
ITEMS = 250  # in a round
STEPS = 300  # in a round
PROFILE_NBYTES = LEAST_NBYTES // 2
LARGE = json.dumps({"name": "group", "ranks": list(range(60_000))})


def long_names(recorder: Recorder, number: int) -> None:
    recorder.intern(f"{number} {'x' * 400}")


def short_names(recorder: Recorder, number: int) -> None:
    for k in range(10):
        recorder.intern(f"{number} {k}")


def names_of_every_length(recorder: Recorder, number: int) -> None:
    recorder.intern(f"{number} {'x' * (number % 97) ** 2}")


def groups(recorder: Recorder, number: int) -> None:
    name = recorder.intern(f"group {number}")
    recorder.describe(Kind.GROUP, json.dumps({"name": f"group {number}", "ranks": list(range(100)), "backend": "x"}))
    recorder.event(Kind.CALL, 0, 0, BEGIN, BEGIN + 1, number, 0, 0, name)


def groups_too_large_to_describe(recorder: Recorder, number: int) -> None:
    """Only their names and the counts of their calls stay."""
    name = recorder.intern(f"group {number}")
    recorder.describe(Kind.GROUP, LARGE)
    recorder.event(Kind.CALL, 0, 0, BEGIN, BEGIN + 1, number, 0, 0, name)


def threads(recorder: Recorder, number: int) -> None:
    thread = threading.Thread(target=recorder.event, args=(Kind.DONE, 0, 0, BEGIN, BEGIN, number), name=f"{number}")
    thread.start()
    thread.join()


def reducers(recorder: Recorder, number: int) -> None:
    recorder.describe(Kind.REDUCER, json.dumps({"reducer": number, "names": ["x" * 1500]}))


def errors(recorder: Recorder, number: int) -> None:
    """Of collectives, each with words of its own."""
    recorder.event(Kind.DONE, 1, recorder.intern(f"Connection {number} closed {'by a peer ' * 50}"), BEGIN, BEGIN, 1)


def links(recorder: Recorder, number: int) -> None:
    """To another address each; of every one the last count stays."""
    for k in range(10):
        recorder.event(Kind.LINK, 0, recorder.intern(f"10.0.0.1>10.{number}.0.{k}"), BEGIN, BEGIN, number)


MADE = [
    long_names, short_names, names_of_every_length, groups, groups_too_large_to_describe, threads, reducers, errors,
    links,
]  # fmt: skip


@pytest.fixture
def largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the folder has held at most, also while one file is replaced by another."""
    replace, seen = store._replace, [0]

    def watched(file: Path, content: bytes) -> None:
        seen[0] = max(seen[0], nbytes(tmp_path) + len(content))
        replace(file, content)

    monkeypatch.setattr("ddptrace.record.store._replace", watched)
    return seen


def nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def loaded(folder: Path) -> Recorded:
    return rank_run(RecordReader(folder).read(), {}, rank=0, zero_unix_ns=None)


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_the_folder_stays_within_its_bound_and_what_did_not_fit_is_told(
    tmp_path: Path, largest: list[int], make: Callable[[Recorder, int], None]
) -> None:
    # GIVEN profiler files that take their whole part of the bound
    (tmp_path / "kineto-0.json.gz").write_bytes(bytes(PROFILE_NBYTES))
    recorder = recorder_in(tmp_path)
    recorder.window("kineto-0.json.gz", 0, 0, by_user=False)
    recorder.describe(Kind.GROUP, json.dumps({"name": "first", "ranks": [0, 1], "backend": "gloo", "threads": 2}))
    # WHEN the program makes such things without end
    for round_ in range(ROUNDS):
        for number in range(round_ * ITEMS, (round_ + 1) * ITEMS):
            make(recorder, number)
            if number % 50 == 0:
                give_way(recorder)
                largest[0] = max(largest[0], nbytes(tmp_path))
        train(recorder, STEPS * round_, STEPS * (round_ + 1))
    settled(recorder)
    recorder.close()
    # THEN
    assert LEAST_NBYTES // 2 + PROFILE_NBYTES // 2 < largest[0] <= LEAST_NBYTES
    told = loaded(tmp_path)
    lost = {"names-lost", "descriptions-let-go", "description-lost"}
    assert lost & {finding.code for finding in told.findings}
    assert [group.ranks for group in told.run.groups if group.name == "first"] == [(0, 1)]
    assert told.run.dropped == 0
    events = RecordReader(tmp_path).read().events
    assert events["a"][events["kind"] == Kind.STEP][-1] == STEPS * ROUNDS - 1


def test_counts_of_calls_and_what_describes_share_the_room_there_is() -> None:
    slots = np.zeros(2000, EVENT_DTYPE)
    slots["guard"], slots["begin"] = GUARD, 1
    slots["kind"][:1000], slots["d"][:1000] = Kind.CALL, np.arange(1, 1001)
    slots["kind"][1000:] = Kind.NOTE
    room = 1500 * RECORD_NBYTES
    body = np.frombuffer(thinned(slots, Wanted({}, (), room)), EVENT_DTYPE)
    assert body.nbytes == room
    assert (body["kind"] == Kind.NOTE).sum() == 498  # beside a count for each group, one of all and the sum
    assert body["b"][0] == 502  # notes that went


def test_what_fits_costs_no_word(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    for number in range(20):
        long_names(recorder, number)
        groups(recorder, number)
    train(recorder, 0, 12_000)
    recorder.close()
    told = loaded(tmp_path)
    assert told.run.let_go and told.findings == ()
    assert len(told.run.groups) == 20
