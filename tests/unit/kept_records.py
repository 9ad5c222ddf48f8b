"""Records without end, as a training makes them, for the tests of what is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ddptrace.record import Recorder
from ddptrace.schema import Kind, StepEnd
from ddptrace.trace_options import LEAST_NBYTES, Keep

SMALL = Keep(nbytes=LEAST_NBYTES)
PER_STEP = 12  # records that one step of `train` makes
BEGIN = 1_000_000_000_000  # of `train`


def recorder_in(folder: Path, keep: Keep = SMALL) -> Recorder:
    return Recorder(lambda: folder, keep=keep)


def describe(recorder: Recorder) -> None:
    recorder.describe(Kind.GROUP, json.dumps({"name": "0"}), begin=1)
    recorder.describe(Kind.REDUCER, json.dumps({"reducer": 0, "names": ["x" * 500]}), begin=1)


def train(recorder: Recorder, first: int, last: int, *, begin: int = BEGIN) -> None:
    """Steps of 1000 ns, ten collectives of group "0" and one send in each. Slower than the keeper, as training is."""
    op, send, group = (recorder.intern(text) for text in ("all_reduce", "send", "0"))
    for step in range(first, last):
        at = begin + 1000 * step
        for k in range(10):
            seq = step * 11 + k + 1
            recorder.event(Kind.CALL, 0, op, at + 10 * k, at + 10 * k + 5, seq, 8, 8, group)
        recorder.event(Kind.CALL, 0, send, at + 500, at + 505, step * 11 + 11, 8, 0, group)
        recorder.event(Kind.STEP, StepEnd.OPTIMIZER, 0, at, at + 1000, step)
        if step % 100 == 99:
            give_way(recorder)


def give_way(recorder: Recorder) -> None:
    """The keeper's moment: a test writes faster than any training."""
    deadline = time.monotonic() + 10
    while recorder._spare is None and time.monotonic() < deadline:
        time.sleep(0.001)


def settled(recorder: Recorder) -> None:
    """The keeper has looked once more."""
    recorder.nudge()
    while recorder._wake.is_set():
        time.sleep(0.001)
    time.sleep(0.2)
