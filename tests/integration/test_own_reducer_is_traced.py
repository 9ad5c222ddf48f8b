"""A trace sees BucketedDataParallel by what it tells of itself, and gives the tables that stock DDP gives."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.capture.collectives import tap
from ddptrace.capture.gradients import own_reducer
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.record import RecordReader
from ddptrace.reducer import BucketedDataParallel
from ddptrace.reducer.data_parallel import alive
from ddptrace.schema import RANGE_PREFIX, CallFlag, Kind
from tests.launch import ROOT, torchrun
from tests.programs.own_reducer_traced import CASES, LATE_STEP, OWN, STEPS, STOCK

BOTH = [name for name, case in CASES.items() if case.stock]
WHOLE = [name for name, case in CASES.items() if not case.drops]
DROPPING = [name for name, case in CASES.items() if case.drops]
PULSE = ("all_reduce", "int64", 56)
Told = list[tuple[str, int, tuple[int, ...]]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    torchrun("own_reducer_traced.py", folder)
    return folder


@pytest.fixture(scope="module")
def results(out: Path) -> dict[tuple[str, str], Result]:
    found = [(name, wrapper) for name in CASES for wrapper in (STOCK, OWN) if (out / f"{name}-{wrapper}").exists()]
    return {(name, wrapper): ddptrace.analyze(out / f"{name}-{wrapper}") for name, wrapper in found}


def bucket(row: BucketRow) -> tuple[object, ...]:
    return row.rank, row.step, row.backward, row.reducer, row.layout, row.index, row.nbytes, frozenset(row.parameters)


def ranks(out: Path, name: str) -> tuple[RankRun, ...]:
    return read_run(out / f"{name}-{OWN}").ranks


def told(out: Path, name: str, rank: int) -> Told:
    return [(what, at, tuple(args)) for what, at, args in json.loads((out / f"{name}-told-{rank}.json").read_text())]


@pytest.mark.parametrize("name", BOTH)
def test_buckets_have_the_keys_bytes_and_parameters_that_those_of_stock_ddp_have(
    name: str, results: dict[tuple[str, str], Result]
) -> None:
    stock, own = (results[name, wrapper] for wrapper in (STOCK, OWN))
    # stock DDP begins with one bucket of all, ours with a guess; another drift than the first one stock DDP ignores
    last = CASES[name].drifts_at or STEPS
    first = 0 if name == "unused" else 1
    compared = [Counter(bucket(row) for row in one.buckets if first <= (row.step or 0) < last) for one in (stock, own)]
    assert compared[0] == compared[1]
    assert len(compared[1]) >= 2 * (last - first)
    for field in dataclasses.fields(Result):
        one, other = getattr(stock, field.name), getattr(own, field.name)
        if hasattr(one, "row_type"):
            assert one.row_type is other.row_type
    assert [(row.rank, row.step) for row in stock.steps] == [(row.rank, row.step) for row in own.steps]
    assert [(row.rank, row.step, row.phase) for row in stock.phases] == [
        (row.rank, row.step, row.phase) for row in own.phases
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_in_every_backward_the_buckets_add_up_to_the_gradients(
    name: str, out: Path, results: dict[tuple[str, str], Result]
) -> None:
    result = results[name, OWN]
    for rank in ranks(out, name):
        (reducer,) = rank.reducers
        assert reducer.kind == "BucketedDataParallel"
        nbytes = {parameter.name: parameter.nbytes for parameter in reducer.parameters}
        mine = [row for row in result.buckets if row.rank == rank.rank]
        assert {row.step for row in mine} == set(range(STEPS))
        for _, rows in groupby(mine, key=lambda row: (row.step, row.backward)):
            at_once = list(rows)
            assert [row.index for row in at_once] == list(range(len(at_once))), "sent in the order of their indices"
            assert sorted(name for row in at_once for name in row.parameters) == sorted(nbytes)
            assert all(row.nbytes == sum(nbytes[name] for name in row.parameters) for row in at_once)
    assert "bucket-layout-unknown" not in {finding.code for finding in result.findings}


@pytest.mark.parametrize("name", DROPPING)
def test_where_layers_are_dropped_the_rows_are_the_buckets_that_were_really_sent(
    name: str, out: Path, results: dict[tuple[str, str], Result]
) -> None:
    result = results[name, OWN]
    for rank in ranks(out, name):
        (reducer,) = rank.reducers
        names = [parameter.name for parameter in reducer.parameters]
        buckets = {layout.layout: layout.buckets for layout in reducer.layouts}
        mine = [row for row in result.buckets if row.rank == rank.rank]
        sent = [args for what, _, args in told(out, name, rank.rank) if what == "bucket_launching"]
        assert [(row.index, row.nbytes) for row in mine] == sent
        assert {row.step for row in mine} == set(range(STEPS))
        in_all = sum(len(buckets[layout]) for _, layout in {(row.step, row.layout) for row in mine})
        assert STEPS < len(mine) < in_all, "nothing was dropped"
        for row in mine:
            assert list(row.parameters) == [names[index] for index in buckets[row.layout][row.index]]
    assert "bucket-layout-unknown" not in {finding.code for finding in result.findings}


@pytest.mark.parametrize("name", CASES)
def test_a_bucket_is_ready_then_launched_then_executed(name: str, results: dict[tuple[str, str], Result]) -> None:
    rows = list(results[name, OWN].buckets)
    unready = [row for row in rows if row.ready_at_ns is None]
    others = "unused", "layers dropped and no_sync"  # what no_sync() left is sent though its layer is now dropped
    assert not unready or name in others, "only a bucket that nothing used has no gradient"
    for row in rows:
        assert row.exec_start_at_ns is not None and row.exec_end_at_ns is not None
        assert row.launch_at_ns <= row.exec_start_at_ns <= row.exec_end_at_ns
        if row.ready_at_ns is not None and row.first_ready_at_ns is not None:
            assert row.first_ready_at_ns <= row.ready_at_ns <= row.launch_at_ns
        assert row.wait_ns is not None


@pytest.mark.parametrize("name", CASES)
def test_what_the_reducer_tells_and_what_the_tap_sees_are_the_same_calls(name: str, out: Path) -> None:
    for rank in (0, 1):
        events = RecordReader(out / f"{name}-{OWN}" / f"rank-{rank:05d}").read().events
        calls = events[events["kind"] == Kind.CALL]
        chosen = calls["e"] != 0 if CASES[name].hook else (calls["flags"] & CallFlag.NATIVE) != 0
        seen = [(int(row["begin"]), int(row["end"]), int(row["b"])) for row in calls[chosen]]
        heard = told(out, name, rank)
        launching = [(at, args[1]) for what, at, args in heard if what == "bucket_launching"]
        launched = [at for what, at, _ in heard if what == "bucket_launched"]
        assert len(seen) == len(launching) == len(launched) > STEPS - 1
        for (begin, end, nbytes), (before, announced), after in zip(seen, launching, launched, strict=True):
            assert nbytes == announced
            assert before <= begin <= end <= after


@pytest.mark.parametrize("name", CASES)
def test_the_recorded_ready_order_is_the_one_that_is_told(name: str, out: Path) -> None:
    for rank in ranks(out, name):
        heard = [args[0] for what, _, args in told(out, name, rank.rank) if what == "gradient_ready"]
        assert [int(index) for ready in rank.ready for index in ready.parameters] == heard
        assert [ready.backward for ready in rank.ready] == list(range(STEPS * CASES[name].micro_batches))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.hook is None])
def test_the_host_waits_for_each_bucket_where_the_reducer_says_so(name: str, out: Path) -> None:
    for rank in (0, 1):
        events = RecordReader(out / f"{name}-{OWN}" / f"rank-{rank:05d}").read().events
        calls, waits = (events[events["kind"] == kind] for kind in (Kind.CALL, Kind.WAIT))
        buckets = calls["a"][(calls["flags"] & CallFlag.NATIVE) != 0].tolist()
        of = {int(row["a"]): (int(row["begin"]), int(row["end"])) for row in waits}
        heard = told(out, name, rank)
        begins, ends = ([at for what, at, _ in heard if what == one] for one in ("wait_begins", "bucket_done"))
        for seq, begin, end in zip(buckets, begins, ends, strict=True):
            assert begin <= of[seq][0] <= of[seq][1] <= end


@pytest.mark.parametrize("name", CASES)
def test_what_else_the_reducer_sends_is_recorded_once_and_is_no_bucket(
    name: str, out: Path, results: dict[tuple[str, str], Result]
) -> None:
    carriers = {(row.rank, seq) for row in results[name, OWN].buckets for seq in row.seqs}
    for rank in ranks(out, name):
        rest = Counter((c.op, c.dtype, c.nbytes_in) for c in rank.calls if (rank.rank, c.seq) not in carriers)
        times = 1 if name == "groups in turn" else STEPS  # the other cases' reducers share their group
        assert rest.pop(PULSE) == times, "the ranks compare their steps, now and then or where models may differ"
        assert not any(call.is_native for call in rank.calls if (rank.rank, call.seq) not in carriers)
        if name == "unused":
            assert rest.pop(("all_reduce", "int32", 4 * len(rank.reducers[0].parameters))) == STEPS
        if name == "buffers":
            assert sum(rest[key] for key in list(rest) if key[:2] == ("broadcast", "float32")) == STEPS
        assert {op for op, _, _ in rest} <= {"broadcast"}
        assert {call.reducer for call in rank.calls if call.op == "all_reduce"} == {0}


def test_a_profiler_saw_the_very_calls_that_are_recorded(out: Path, results: dict[tuple[str, str], Result]) -> None:
    for rank in ranks(out, "windows"):
        with gzip.open(out / f"windows-{OWN}" / f"rank-{rank.rank:05d}" / "kineto-0.json.gz") as file:
            names = Counter(event.get("name", "") for event in json.load(file)["traceEvents"] if event.get("ph") == "X")
        ids = {int(name.removeprefix(RANGE_PREFIX)) for name in names if name.startswith(RANGE_PREFIX)}
        recorded = Counter(call.op for call in rank.calls if call.seq in ids)
        assert recorded["all_reduce"] == names["c10d::allreduce_"] > 0
    result = results["windows", OWN]
    profiled = {(row.rank, row.step) for row in result.steps if row.profiled}
    assert len(profiled) == 2 * 3
    assert {row.evidence for row in result.buckets if (row.rank, row.step) in profiled} == {"backend"}


@pytest.mark.parametrize("name", ["hook", "bare future"])
def test_a_hook_is_timed_apart_from_what_it_issues(
    name: str, out: Path, results: dict[tuple[str, str], Result]
) -> None:
    hook = CASES[name].hook.__name__
    for row in results[name, OWN].buckets:
        assert row.hook == hook
        assert row.hook_ns is not None and row.hook_ns > 0
        assert row.done_at_ns is not None and row.exec_end_at_ns is not None
    for rank in ranks(out, name):
        heard = told(out, name, rank.rank)
        assert len(rank.hooks) == sum(what == "hook_begins" for what, _, _ in heard) > 0
        assert [call.index for call in rank.hooks] == [args[0] for what, _, args in heard if what == "hook_begins"]
        calls = {call.hook: call for call in rank.calls if call.hook is not None}
        assert not any(call.is_native for call in calls.values()), "the program's hook issued them"
        for one in rank.hooks:
            assert one.begin_at_ns <= calls[one.seq].launch_at_ns <= calls[one.seq].issued_at_ns <= one.end_at_ns
            assert one.done_at_ns is not None and one.done_at_ns >= one.begin_at_ns


def test_the_hooks_of_both_wrappers_give_the_same_rows(results: dict[tuple[str, str], Result]) -> None:
    for wrapper in (STOCK, OWN):
        rows = list(results["hook", wrapper].buckets)
        assert {row.hook for row in rows} == {"chained_hook"}
        assert all(row.hook_ns is not None and row.done_at_ns is not None for row in rows)


@pytest.mark.parametrize("name", BOTH)
def test_spans_are_made_of_every_bucket(name: str, out: Path, results: dict[tuple[str, str], Result]) -> None:
    keys = ("rank", "step", "bucket.backward", "bucket.reducer", "bucket.layout", "bucket.index", "bucket.nbytes")
    found: Counter[tuple[Any, ...]] = Counter()
    for rank in (0, 1):
        spans = json.loads((out / f"{name}-spans-{rank}.json").read_text())
        buckets = [span for span in spans if span["name"].startswith("bucket ")]
        found.update(tuple(span["attributes"].get(f"ddptrace.{key}") for key in keys) for span in buckets)
    rows = results[name, OWN].buckets
    assert found == Counter((r.rank, r.step, r.backward, r.reducer, r.layout, r.index, r.nbytes) for r in rows)


def test_a_wait_in_slices_does_not_end_a_collective_before_the_late_rank_has_come(
    results: dict[tuple[str, str], Result],
) -> None:
    rows = [row for row in results["late", OWN].buckets if row.step == LATE_STEP]
    ends = [row.exec_end_at_ns for row in rows if row.rank == 0]
    launches = [row.launch_at_ns for row in rows if row.rank == 1]
    assert len(ends) == len(launches) > 1
    assert all(end is not None and end > launch for end, launch in zip(ends, launches, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_parameters_are_the_same_bits_with_and_without_tracing(name: str, out: Path) -> None:
    for rank in (0, 1):
        off, on = (torch.load(out / f"{name}-{which}-{rank}.pt") for which in ("off", "on"))
        assert len(off) == len(on) > STEPS
        assert all(torch.equal(a, b) for a, b in zip(off, on, strict=True))


def test_wrappers_made_before_and_inside_the_trace_are_seen_beside_stock_ddp(out: Path) -> None:
    run, result = read_run(out / "three"), ddptrace.analyze(out / "three")
    known = [[(r.reducer, r.kind, r.module) for r in rank.reducers] for rank in run.ranks]
    assert known[0] == known[1]
    assert sorted(known[0], key=lambda one: one[2]) == [
        (1, "BucketedDataParallel", "Norms"),
        (0, "BucketedDataParallel", "Plain"),
        (2, "DistributedDataParallel", "Towers"),
    ]
    for rank in run.ranks:
        nbytes = {r.reducer: sum(parameter.nbytes for parameter in r.parameters) for r in rank.reducers}
        for step in range(STEPS):
            rows = [row for row in result.buckets if (row.rank, row.step) == (rank.rank, step)]
            sent: Counter[int] = Counter()
            for row in rows:
                sent[row.reducer] += row.nbytes
            assert sent == nbytes


def test_on_off_on_again_records_twice_and_nothing_between(out: Path) -> None:
    assert not (out / "between").exists()
    for name in ("first", "second"):
        run, result = read_run(out / name), ddptrace.analyze(out / name)
        for rank in run.ranks:
            assert len(rank.steps) == len(rank.ready) == STEPS
            assert {row.step for row in result.buckets if row.rank == rank.rank} == set(range(STEPS))
    layouts = [layout.layout for layout in read_run(out / "second").ranks[0].reducers[0].layouts]
    assert layouts == [1], "the layout in force when the trace begins is told, under its own number"


# In this process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@dataclass
class Heard:
    names: list[str]

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.names.append(name)


def train(model: nn.Module, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()


def observers() -> list[own_reducer.BucketWatch]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is own_reducer.BucketWatch]


def test_after_a_trace_its_observer_is_gone_and_the_programs_own_is_not(tmp_path: Path, group: None) -> None:
    heard = Heard([])
    silent, model = BucketedDataParallel(nn.Linear(4, 4)), BucketedDataParallel(nn.Linear(4, 4), observer=heard)
    with ddptrace.trace(tmp_path / "run"):
        train(silent)
        train(model)
        assert len(observers()) == len(alive()) >= 2
    assert not observers()
    assert silent._voice.tell is None
    for wrapper in (silent, model):
        assert all(len(p._post_accumulate_grad_hooks) == 1 for p in wrapper.parameters()), "the reducer's own"
    assert heard.names.count("bucket_done") == 2
    train(model)
    assert heard.names.count("bucket_done") == 4


def test_gradients_of_a_backward_that_was_not_seen_are_not_taken_for_those_of_another(
    tmp_path: Path, group: None
) -> None:
    unseen, model = torch.autograd.backward, BucketedDataParallel(nn.Linear(4, 4))
    with ddptrace.trace(tmp_path / "run"):
        train(model, steps=1)
        for _ in range(3):
            unseen(model(torch.ones(2, 4)).sum())
        train(model, steps=1)
    (rank,) = read_run(tmp_path / "run").ranks
    assert [(ready.backward, len(ready.parameters)) for ready in rank.ready] == [(0, 2), (1, 2)]


def test_an_exception_in_a_hook_leaves_nothing_behind_on_the_thread(tmp_path: Path, group: None) -> None:
    def failing(state: object, bucket: object) -> Any:
        raise ZeroDivisionError

    model = BucketedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, failing)
    with ddptrace.trace(tmp_path / "run"):
        with pytest.raises(ZeroDivisionError):
            train(model)
        dist.all_reduce(torch.ones(3))
    assert not observers()
    (rank,) = read_run(tmp_path / "run").ranks
    assert [(call.hook, call.reducer, call.is_native) for call in rank.calls if call.nbytes_in == 12] == [
        (None, None, False)
    ]


def test_a_model_dropped_during_the_trace_is_freed(tmp_path: Path, group: None) -> None:
    with ddptrace.trace(tmp_path / "run"):
        model = BucketedDataParallel(nn.Linear(4, 4))
        train(model)
        gone = weakref.ref(model.module.weight)
        del model
        gc.collect()
        assert gone() is None
    assert read_run(tmp_path / "run").ranks[0].ready


def test_where_the_tap_cannot_be_proven_the_buckets_are_still_known(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved() -> None:
        raise AttributeError("planted: a private name has moved")

    monkeypatch.setattr(tap, "install", moved)
    with ddptrace.trace(tmp_path / "run"):
        train(BucketedDataParallel(nn.Linear(4, 4)), steps=3)
    rows = ddptrace.analyze(tmp_path / "run").buckets
    assert [(row.index, row.nbytes, sorted(row.parameters)) for row in rows] == 3 * [(0, 80, ["bias", "weight"])]


def test_an_observer_of_ours_that_fails_is_noted_and_training_goes_on(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr("ddptrace.capture.gradients.reducer_records.ReducerRecords.layout", broken)
    model = BucketedDataParallel(nn.Linear(4, 4))
    with (
        pytest.warns(RuntimeWarning, match="stopped watching reducer: LookupError: planted"),
        ddptrace.trace(tmp_path / "run"),
    ):
        train(model)
    assert model.module.weight.grad is not None
    assert not observers()
    assert "surface-failed" in {finding.code for finding in read_run(tmp_path / "run").findings}


def test_a_program_without_our_reducer_does_not_import_it(tmp_path: Path) -> None:
    program = (
        "import sys, torch, ddptrace\n"
        f"with ddptrace.trace({str(tmp_path / 'run')!r}):\n"
        "    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n"
        "print([name for name in sys.modules if name.startswith('ddptrace.reducer')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
