"""What the host does to the training thread is recorded as the thread's own looks at the system show it."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddptrace
from ddptrace.capture import session
from ddptrace.capture import surface as blind_spots
from ddptrace.capture.host import host_load
from ddptrace.capture.host.host_load import Collections, HostMarks
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.record import RecordReader
from ddptrace.schema import Kind, Phase, StepEnd

pytestmark = pytest.mark.long

MS = 10**6
OUTSIDE = 0


class Net(nn.Module):
    """Does something in its forward."""

    def __init__(self, does: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.does = does

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.does()
        found: torch.Tensor = self.linear(inputs)
        return found


def train(model: nn.Module, steps: int, after: Callable[[], object] = lambda: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        after()


def recorded(path: Path, loop: Callable[[], object], **how: object) -> RankRun:
    with ddptrace.trace(path, **how):  # type: ignore[arg-type]
        loop()
    (rank,) = read_run(path).ranks
    return rank


def written(path: Path, kind: Kind) -> int:
    """How many records of a kind there are, also those that the load leaves out."""
    kinds = RecordReader(path / "rank-00000").read().events["kind"]
    return int((kinds == kind).sum())


def compute(ns: int) -> None:
    """Use the thread's processor for so long."""
    until = time.thread_time_ns() + ns
    while time.thread_time_ns() < until:
        pass


@pytest.fixture
def lists() -> Iterator[list[list[object]]]:
    """So many that a full collection takes some milliseconds. None comes by itself meanwhile."""
    gc.collect()
    gc.disable()
    yield [[] for _ in range(300_000)]
    gc.enable()


# What the thread is in ------------------------------------------------------------------------------------------------


def doing() -> int:
    current = session._current
    assert current is not None
    return current.steps.doing


def test_what_the_training_thread_is_in_can_be_read_at_any_time(tmp_path: Path) -> None:
    seen: list[int] = []

    def look(*_: object) -> None:
        seen.append(doing())

    def collate(rows: list[tuple[torch.Tensor]]) -> torch.Tensor:
        look()
        return torch.stack([row for (row,) in rows])

    model = Net(look)
    model.linear.weight.register_hook(look)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        look()
        model(torch.ones(4, 8)).sum().backward()
        look()
        return 0.0

    with ddptrace.trace(tmp_path):
        for inputs in DataLoader(TensorDataset(torch.ones(4, 8)), batch_size=4, collate_fn=collate):
            look()
            model(inputs).sum().backward()
            look()
            optimizer.step(closure)
            look()
    one = [Phase.DATA, OUTSIDE, Phase.FORWARD, Phase.BACKWARD, OUTSIDE]
    inner = [Phase.OPTIMIZER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, OUTSIDE]
    assert seen == one + inner


def test_after_a_phase_that_raised_the_thread_is_in_none(tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise ZeroDivisionError

    model = nn.Linear(8, 8)
    with ddptrace.trace(tmp_path):
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 9))
        assert doing() == OUTSIDE
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 8)).backward()
        assert doing() == OUTSIDE
        with pytest.raises(ZeroDivisionError):
            Odd(model.parameters(), lr=0.1).step()
        train(model, 1)
        assert doing() == OUTSIDE


def test_the_training_thread_is_the_one_that_runs_the_model(tmp_path: Path) -> None:
    natives: list[int] = []

    def loop() -> None:
        train(nn.Linear(8, 8), 1)
        natives.append(threading.get_native_id())

    with ddptrace.trace(tmp_path):
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
        assert session._current is not None
        assert session._current.steps.thread == (thread.ident, natives[0])


# Waits for a processor ------------------------------------------------------------------------------------------------


def test_what_the_system_counts_of_the_thread_is_told_from_one_end_of_a_step_to_the_next(tmp_path: Path) -> None:
    def counts() -> tuple[int, int, int]:
        queued = int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])
        return time.thread_time_ns(), queued, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw

    before = counts()
    rank = recorded(tmp_path, lambda: train(Net(lambda: compute(20 * MS)), 4))
    after = counts()
    marks = rank.load.marks
    assert len(marks) == len(rank.steps) == 4
    assert all(one.end_at_ns == following.begin_at_ns for one, following in pairwise(marks))
    for mark, step in zip(marks, rank.steps, strict=True):
        assert mark.end_at_ns >= step.end_at_ns > (mark.begin_at_ns + mark.end_at_ns) // 2 > step.begin_at_ns
        assert mark.cpu_ns >= 20 * MS
    told = [(mark.cpu_ns, mark.queued_ns, mark.switches) for mark in marks]
    sums = [sum(column) for column in zip(*told, strict=True)]
    assert all(0 <= own <= b - a for own, a, b in zip(sums, before, after, strict=True))


def test_a_thread_that_shares_its_processor_has_waited_for_it(tmp_path: Path) -> None:
    """The other one computes as long as this one on the only processor that both may use."""
    allowed = os.sched_getaffinity(0)
    child = os.fork()
    if child == 0:  # an own process: threads of this one take turns by the interpreter's lock
        os.sched_setaffinity(0, {min(allowed)})
        while True:
            pass
    try:
        os.sched_setaffinity(0, {min(allowed)})
        rank = recorded(tmp_path, lambda: train(Net(lambda: compute(60 * MS)), 3))
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert sum(mark.queued_ns for mark in rank.load.marks) > 60 * MS
    assert sum(mark.switches for mark in rank.load.marks) > 0


@pytest.mark.parametrize("how", ["optimizer", "said"])
def test_of_steps_that_are_not_recorded_nothing_is_told_nor_added_to_others(tmp_path: Path, how: str) -> None:
    model = Net(lambda: compute(5 * MS))

    def loop() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            if how == "said":
                trace.step()

    trace = ddptrace.trace(tmp_path, keep=ddptrace.Keep(every=4))
    with trace:
        loop()
    (rank,) = read_run(tmp_path).ranks
    assert rank.sampled
    middles = [(mark.begin_at_ns + mark.end_at_ns) // 2 for mark in rank.load.marks]
    first, *others = rank.steps  # the first is told in two parts, where it is not known yet that steps are said
    assert [step.ordinal for step in rank.steps] == [0, 1, 2, 4, 8]
    for step in others:
        assert sum(step.begin_at_ns < at < step.end_at_ns for at in middles) == 1
    for skipped in rank.partial_steps:
        at = (skipped.begin_at_ns + skipped.end_at_ns) // 2
        assert not any(mark.begin_at_ns <= at < mark.end_at_ns for mark in rank.load.marks)
    assert all(any(s.begin_at_ns < at < s.end_at_ns for s in (first, *others)) for at in middles)
    assert written(tmp_path, Kind.HOST) == len(middles)


@pytest.mark.parametrize("system", ["has no such file", "does not count"])
def test_where_the_system_tells_no_waits_the_run_says_so_and_training_is_not_bothered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    class Odd:
        """`os`, on such a system."""

        O_RDONLY, O_CLOEXEC = os.O_RDONLY, os.O_CLOEXEC
        close, fstat = staticmethod(os.close), staticmethod(os.fstat)

        @staticmethod
        def open(path: str, flags: int) -> int:
            if system == "has no such file":
                raise FileNotFoundError(path)
            return os.open(path, flags)

        @staticmethod
        def pread(file: int, count: int, offset: int) -> bytes:
            return b"0 0 0\n"

    monkeypatch.setattr(host_load, "os", Odd)
    rank = recorded(tmp_path, lambda: train(nn.Linear(8, 8), 3))
    assert (len(rank.steps), rank.load.marks) == (3, ())
    run = read_run(tmp_path)
    assert run.manifest["blind_spots"].count(blind_spots.UNSEEN_WITHOUT_SCHEDULER_TIMES) == 1
    assert "surface-failed" not in {finding.code for finding in run.findings}


# Collections of garbage -----------------------------------------------------------------------------------------------


def test_collections_of_the_training_thread_are_told_where_they_are_long(
    tmp_path: Path, lists: list[list[object]]
) -> None:
    around: list[tuple[int, int]] = []

    def collect() -> None:
        begin = time.time_ns()
        gc.collect()
        around.append((begin, time.time_ns()))
        gc.collect(0)  # of nothing

    rank = recorded(tmp_path, lambda: train(nn.Linear(8, 8), 3, collect))
    zero = read_run(tmp_path).zero_unix_ns
    told = rank.load.collections
    assert [one.generation for one in told] == [2, 2, 2]
    for one, (begin, end) in zip(told, around, strict=True):
        assert begin - MS < zero + one.begin_at_ns < zero + one.end_at_ns < end + MS
        assert one.end_at_ns - one.begin_at_ns >= MS


def test_a_collection_on_another_thread_is_not_the_training_threads(tmp_path: Path, lists: list[list[object]]) -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()

    assert recorded(tmp_path, lambda: train(nn.Linear(8, 8), 3, elsewhere)).load.collections == ()


def test_collections_in_steps_that_are_not_recorded_are_not_told(tmp_path: Path, lists: list[list[object]]) -> None:
    rank = recorded(tmp_path, lambda: train(Net(gc.collect), 8), keep=ddptrace.Keep(every=4))
    steps = [step for step in rank.steps if step.ended_by is StepEnd.OPTIMIZER]
    told = [one.begin_at_ns for one in rank.load.collections]
    assert [step.ordinal for step in steps for at in told if step.begin_at_ns <= at < step.end_at_ns] == [0, 1, 2, 4]
    assert len(told) == written(tmp_path, Kind.GC) == 4


def test_an_exception_of_a_signals_handler_is_not_lost_in_a_collection(
    tmp_path: Path, lists: list[list[object]]
) -> None:
    """The signal comes in the midst of a collection, so that its handler runs right behind it."""

    class Stop(Exception):
        pass

    def handler(*_: object) -> None:
        raise Stop

    others, gc.callbacks[:] = gc.callbacks[:], []  # of test tools, in Python, where the exception would be lost
    before = signal.signal(signal.SIGVTALRM, handler)
    try:
        with ddptrace.trace(tmp_path), pytest.raises(Stop):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
            gc.collect()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.callbacks[:] = others


def test_where_more_collections_came_than_are_remembered_none_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: list[list[object]]
) -> None:
    monkeypatch.setattr(host_load, "MOST_MOMENTS", 8)

    def look_amid_a_collection(collections: Collections) -> None:
        collections._moments.append((time.perf_counter_ns(), threading.get_ident(), -1, None))
        collections.look()
        collections._moments.append((time.perf_counter_ns(), threading.get_ident(), -1, {}))

    with ddptrace.trace(tmp_path):
        assert session._current is not None
        look_amid_a_collection(session._current._collections)
        time.sleep(0.002)
        for _ in range(4):
            gc.collect(0)
        look_amid_a_collection(session._current._collections)
    (rank,) = read_run(tmp_path).ranks
    assert rank.load.collections == ()


@pytest.mark.parametrize(
    ("part", "name", "left"),
    [(HostMarks, "end", "collections"), (Collections, "look", "marks"), (HostMarks, "install", "collections")],
)
def test_each_part_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: list[list[object]], part: type, name: str, left: str
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(part, name, broken)
    surface = "host" if part is HostMarks else "garbage"
    with pytest.warns(RuntimeWarning, match=f"stopped watching {surface}: LookupError: planted") as warned:
        rank = recorded(tmp_path, lambda: train(nn.Linear(8, 8), 3, gc.collect))
    assert len(warned) == 1
    assert len(rank.steps) == 3
    told = {"marks": rank.load.marks, "collections": rank.load.collections}
    assert [len(found) for kind, found in told.items() if kind == left] == [3]
    assert [found for kind, found in told.items() if kind != left] == [()]


def test_a_file_of_the_program_that_has_its_number_by_now_is_neither_read_nor_closed(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("1 2 3")

    def loop() -> None:
        current = session._current
        assert current is not None
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(6):
            if step == 3:
                os.dup2(own, current._marks._file)  # as a program that closes all there is and opens its own
            model(torch.ones(8)).sum().backward()
            optimizer.step()
        kept.append(os.fstat(current._marks._file).st_ino)
        taken.append(next(int(p.name) for p in FDS.iterdir() if int(p.name) != own and _same(int(p.name), own)))

    kept: list[int] = []
    taken: list[int] = []
    own = os.open(tmp_path / "own", os.O_RDONLY)
    try:
        rank = recorded(tmp_path / "run", loop)
        assert os.read(taken[0], 5) == b"1 2 3", "it is still open"
        assert kept[0] != os.fstat(own).st_ino
        assert len(rank.load.marks) == 6
    finally:
        os.close(own)
        os.close(taken[0])


FDS = Path("/proc/self/fd")


def _same(number: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.fstat(other))
    except OSError:
        return False
