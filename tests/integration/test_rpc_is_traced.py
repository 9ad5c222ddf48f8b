"""Remote calls against independent witnesses: the callees' own counts, and the bytes that the loopback carried."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch._C._distributed_rpc import PyRRef
from torch.distributed import rpc
from torch.distributed.rpc import api, internal

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.traffic import RpcRow
from ddptrace.capture.rpc import callee as rpc_callee
from ddptrace.capture.rpc import calls as capture_rpc
from ddptrace.capture.rpc import messages as rpc_messages
from ddptrace.capture.rpc import messages as rpc_workers
from ddptrace.capture.surface import Surface
from ddptrace.load.run import read_run
from ddptrace.record import Recorder
from ddptrace.render.terminal import summary_text
from ddptrace.render.trace.chrome import write_trace
from ddptrace.schema import CALL_BITS, RpcOp
from tests.conftest import need
from tests.launch import PROGRAMS, environment
from tests.perfetto import ask
from tests.programs.rpc_bytes import BY_HAND, ROUNDS, N
from tests.self_launched import self_launched

WORKERS = ("worker0", "worker1", "worker2")
PAIRS = [(a, b) for a in WORKERS for b in WORKERS if a != b]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same calls traced on all workers, on none, and on two of three."""
    folder = tmp_path_factory.mktemp("rpc")
    run("rpc_calls.py", folder)
    return folder


def run(program: str, folder: Path, *around: str) -> str:
    """What a program says, run on `folder`, by way of the command `around`. Fails the test where it fails."""
    if not around:
        return self_launched(program, folder).stdout
    command = [*around, sys.executable, str(PROGRAMS / program), str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return ddptrace.analyze(folder / "traced" / "run")


def told(folder: Path, mode: str, rank: int) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / mode / f"{rank}.json").read_text())
    return content


def program_calls(result: Result) -> list[RpcRow]:
    return [row for row in result.rpcs if not row.internal]


def ran(result: Result, rank: int) -> Counter[str]:
    """How often each function of the program ran on a rank, in the words of its own counts."""
    counts: Counter[str] = Counter()
    for row in program_calls(result):
        if row.callee_rank == rank and row.run_ns is not None:
            by = f" {row.caller}" if row.function in ("told", "fails", "slow") else ""
            counts[row.function.removeprefix("RRef.") + by] += 1
    del counts["Layer"]  # a class: it counts nothing
    return counts


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_run_at_the_callee_is_recorded_with_its_caller_as_the_callee_counted_it(
    folder: Path, result: Result, rank: int
) -> None:
    assert ran(result, rank) == told(folder, "traced", rank)["counts"]


def test_values_errors_and_gradients_are_the_same_with_and_without_a_trace(folder: Path) -> None:
    for rank in range(3):
        assert told(folder, "traced", rank) == told(folder, "plain", rank)


def test_the_table_of_pairs_holds_every_call_of_every_worker_to_every_other(result: Result) -> None:
    pairs = {(row.caller, row.callee, row.op): row for row in result.rpc_pairs if not row.internal}
    expected = {"rpc_sync": 11, "rpc_async": 5, "remote": 3, "to_here": 1, "backward": 1}
    assert {key: row.calls for key, row in pairs.items()} == {
        (*pair, op): calls for pair in PAIRS for op, calls in expected.items()
    }
    assert all(pairs[*pair, "rpc_sync"].failed == 2 for pair in PAIRS)
    assert sum(row.failed for row in pairs.values()) == 2 * len(PAIRS)
    assert all(row.unfinished == 0 for row in pairs.values())


def test_a_call_and_its_run_are_one_row_whose_run_lies_within_the_call(result: Result) -> None:
    linked = [row for row in program_calls(result) if row.run_ns is not None]
    assert len(linked) == len(PAIRS) * (
        11 + 5 + 3 - 2
    )  # a builtin and a script run without Python; to_here and backward run nothing
    for row in linked:
        assert row.caller == f"worker{row.rank}" and row.callee == f"worker{row.callee_rank}"
        assert row.launch_at_ns is not None and row.run_start_at_ns is not None
        assert row.run_end_at_ns is not None and row.done_at_ns is not None
        assert row.launch_at_ns < row.run_start_at_ns < row.run_end_at_ns
        if row.error != "timeout" and row.op != "remote":
            assert row.run_end_at_ns < row.done_at_ns


def test_failures_say_what_the_caller_was_told_and_a_timeout_does_not_end_the_run(result: Result) -> None:
    failed = {(row.caller, row.callee, row.function): row for row in program_calls(result) if row.failed}
    assert set(failed) == {(*pair, name) for pair in PAIRS for name in ("fails", "slow")}
    for pair in PAIRS:
        raised, late = failed[*pair, "fails"], failed[*pair, "slow"]
        assert raised.error == "ValueError" and raised.nbytes_back
        assert late.error == "timeout" and late.call_ns and late.run_ns
        assert late.call_ns < 500_000_000 < late.run_ns


def test_caller_and_callee_count_the_same_bytes_also_of_a_call_that_raised(folder: Path) -> None:
    ranks = read_run(folder / "traced" / "run").ranks
    calls = {call.id: call for rank in ranks for call in rank.rpc.calls}
    runs = [(run, calls[run.call]) for rank in ranks for run in rank.rpc.runs if run.call in calls]
    assert all(run.nbytes_in == call.nbytes_out for run, call in runs)
    answered = [(run, call) for run, call in runs if not run.is_internal and run.nbytes_back is not None]
    assert Counter(run.function for run, _ in answered) == {
        "equal": 30, "told": 18, "RRef.forward": 18, "fails": 6, "slow": 6,
    }  # fmt: skip
    assert all(run.nbytes_back == call.nbytes_back for run, call in answered if call.error != "timeout")


def test_gradients_of_a_distributed_backward_belong_to_the_call_they_went_through(result: Result) -> None:
    through = [
        row for row in result.rpcs if row.gradient_nbytes_out is not None or row.gradient_nbytes_back is not None
    ]
    # The gradient of a sum is one number, expanded; a reference's own backward begins at its owner.
    expected = {("RRef.forward", 32, 32), ("total", None, 4)}
    assert sorted((row.caller, row.callee) for row in through) == sorted(2 * PAIRS)
    assert {(row.function, row.gradient_nbytes_out, row.gradient_nbytes_back) for row in through} == expected
    assert not any(row.gradient_inferred for row in through)


def test_a_worker_without_ddptrace_answers_and_asks_as_always_and_is_none(folder: Path) -> None:
    result = ddptrace.analyze(folder / "mixed" / "run")
    for rank in range(3):
        assert told(folder, "mixed", rank) == told(folder, "plain", rank)
    to_it = [row for row in program_calls(result) if row.callee == "worker1"]
    assert len(to_it) == 2 * 21
    assert all(row.run_ns is None and row.done_at_ns is not None for row in to_it)
    (through,) = [row for row in to_it if row.caller == "worker0" and row.gradient_nbytes_out is not None]
    assert (through.gradient_nbytes_out, through.gradient_nbytes_back, through.gradient_inferred) == (32, 32, True)
    from_it = Counter(row.function for row in program_calls(result) if row.rank is None and row.callee == "worker0")
    assert from_it == {
        "equal": 5,
        "told": 4,
        "relayed": 1,
        "Layer": 1,
        "RRef.forward": 3,
        "fails": 1,
        "slow": 1,
        "total": 1,
    }
    assert all(row.caller is None for row in result.rpcs if row.rank is None)


def test_bytes_are_those_that_the_loopback_carried(tmp_path: Path) -> None:
    need(
        os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"),
        "root, unshare and ip (apt-get install iproute2)",
    )
    run("rpc_bytes.py", tmp_path, "unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    carried = json.loads((tmp_path / "carried.json").read_text())
    result = ddptrace.analyze(tmp_path / "run")
    for name, nbytes in carried.items():
        rows = [row for row in result.rpcs if row.function == name or (name, row.function) == ("to_here", "kept")]
        sent = sum(size or 0 for row in rows for size in directions(row)) / (ROUNDS + 1)
        assert 0.99 * nbytes < sent < 1.01 * nbytes, f"{name}: {sent} recorded, {nbytes} carried"
    assert carried.keys() == BY_HAND.keys()
    # Which of it went which way, the interface does not tell: what the functions do does.
    for name, expected in BY_HAND.items():
        rows = [row for row in result.rpcs if row.function == name]
        assert len(rows) == ROUNDS + 1
        for told in map(directions, rows):
            for seen, by_hand in zip(told, expected, strict=True):
                assert (seen is None) == (by_hand is None), f"{name}: {told}"
                assert seen is None or by_hand is None or abs(seen - by_hand) < 0.01 * 4 * N, f"{name}: {told}"


def directions(row: RpcRow) -> tuple[int | None, ...]:
    return row.nbytes_out, row.nbytes_back, row.gradient_nbytes_out, row.gradient_nbytes_back


def test_a_callee_that_dies_is_a_failed_call_and_the_caller_goes_on(tmp_path: Path) -> None:
    assert run("rpc_death.py", tmp_path).split() == ["1.0", "told", "0", str(-signal.SIGKILL)]
    result = ddptrace.analyze(tmp_path / "run")
    by_function = {row.function: row for row in program_calls(result)}
    assert by_function["dies"].failed and by_function["dies"].error
    assert by_function["lives"].error is None
    assert by_function["lives"].run_ns is not None  # what the dead one had recorded is there


def test_the_trace_has_an_arrow_from_every_call_to_its_run_and_the_terminal_its_pairs(
    result: Result, tmp_path: Path
) -> None:
    rows = ask(
        write_trace(result, tmp_path / "trace.json.gz"),
        arrows="select s.name, d.name from flow join slice s on s.id = slice_out join slice d on d.id = slice_in "
        "where s.category = 'rpc'",
        calls="select count(*) from slice where category = 'rpc'",
    )
    linked = [row for row in result.rpcs if row.run_ns is not None and row.launch_at_ns is not None]
    assert len(rows["arrows"]) == len(linked)
    assert all(run.split(" for ")[0] in call for call, run in rows["arrows"])
    assert rows["calls"] == [[sum(row.launch_at_ns is not None for row in result.rpcs)]]
    told = re.findall(r"(\d+) calls? failed: worker\d → worker\d \w+ \(\w+\)", summary_text(result))
    assert (
        "worker0 → worker1" in summary_text(result) and len(told) == 8 and "4 more calls failed" in summary_text(result)
    )


ALONE = pytest.mark.filterwarnings("ignore:You are using a Backend")  # init_rpc's own gathering of devices
PATCHED = [
    (internal._InternalRPCPickler, "serialize"),
    (internal._InternalRPCPickler, "deserialize"),
    (internal, "_get_current_rpc_agent"),
    (torch.distributed.autograd, "backward"),
    (api, "_wait_all_workers"),
    (PyRRef, "to_here"),
    (PyRRef, "backward"),
    (torch._C.Future, "wait"),
    (torch._C.Future, "then"),
    (torch.distributed.Work, "get_future"),
    *((api, f"_invoke_{name}") for name in ("rpc", "rpc_python_udf", "rpc_builtin", "rpc_torchscript")),
    *((api, f"_invoke_remote_{name}") for name in ("python_udf", "builtin", "torchscript")),
]


def here(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@ALONE
def test_after_the_trace_torch_is_as_before_and_calls_go_on_unrecorded(tmp_path: Path) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'store'}")
    before = [vars(owner)[name] for owner, name in PATCHED]
    with ddptrace.trace(tmp_path / "run"):
        assert all(vars(owner)[name] is not was for (owner, name), was in zip(PATCHED, before, strict=True))
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)  # C++ keeps what it finds now
        assert float(rpc.rpc_sync("alone", here, args=(torch.zeros(1),))) == 1
    try:
        assert all(vars(owner)[name] is was for (owner, name), was in zip(PATCHED, before, strict=True))
        assert float(rpc.rpc_sync("alone", here, args=(torch.zeros(1),))) == 1
        with pytest.raises(ValueError, match="math domain"):
            rpc.rpc_sync("alone", math_error)
    finally:
        rpc.shutdown()
    (rank,) = read_run(tmp_path / "run").ranks
    assert [call.function for call in rank.rpc.calls] == ["here"]
    assert [run.call for run in rank.rpc.runs] == [rank.rpc.calls[0].id]


def math_error() -> None:
    raise ValueError("math domain")


def sized(n: int) -> torch.Tensor:
    return torch.ones(n)


@ALONE
def test_each_result_belongs_to_its_own_call_however_many_are_on_their_way(tmp_path: Path) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'store'}")
    with ddptrace.trace(tmp_path / "run"):
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
        futures = [rpc.rpc_async("alone", sized, args=(n,)) for n in range(1, 301)]
        assert [len(future.wait()) for future in futures] == list(range(1, 301))
        rpc.shutdown()  # by then every callback has run
    (rank,) = read_run(tmp_path / "run").ranks
    beside = {(call.nbytes_back or 0) - 4 * n for n, call in enumerate(rank.rpc.calls, start=1)}
    assert len(rank.rpc.calls) == 300 and len(beside) == 1 and beside.pop() > 0
    assert {run.call for run in rank.rpc.runs} == {call.id for call in rank.rpc.calls}
    back = {run.call: run.nbytes_back for run in rank.rpc.runs}
    assert all(back[call.id] == call.nbytes_back for call in rank.rpc.calls)


THREADS, EACH = 4, 25


@ALONE
def test_calls_of_many_threads_at_once_are_counted_exactly_and_each_has_its_own_run(tmp_path: Path) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'store'}")
    with ddptrace.trace(tmp_path / "run"):
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
        threads = [threading.Thread(target=call_in_every_way, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rpc.shutdown()
    (rank,) = read_run(tmp_path / "run").ranks
    own = [call for call in rank.rpc.calls if not call.is_internal]
    ways = RpcOp.RPC_SYNC, RpcOp.RPC_ASYNC, RpcOp.REMOTE
    assert Counter(call.op for call in own) == dict.fromkeys(ways, THREADS * EACH)
    assert Counter(Counter(call.thread for call in own).values()) == {3 * EACH: THREADS}
    assert all(call.error is None and call.done_at_ns is not None for call in own)
    assert Counter(run.call for run in rank.rpc.runs if not run.is_internal) == {call.id: 1 for call in own}
    # A result of n numbers is told of the call that asked for n.
    back = {call.id: call.nbytes_back for call in own if call.op is not RpcOp.REMOTE}
    runs = {run.call: run.nbytes_back for run in rank.rpc.runs if run.call in back}
    assert runs == back and len(set(back.values())) == 2 * THREADS * EACH


def call_in_every_way(number: int) -> None:
    for turn in range(EACH):
        n = 2 * (EACH * number + turn) + 1
        assert len(rpc.rpc_sync("alone", sized, args=(n,))) == n
        assert len(rpc.rpc_async("alone", sized, args=(n + 1,)).wait()) == n + 1
        assert len(rpc.remote("alone", sized, args=(n,)).to_here()) == n


def broken(*_: object) -> None:
    raise ZeroDivisionError


@ALONE
@pytest.mark.parametrize(
    ("module", "name"),
    [(rpc_callee, "function_name"), (capture_rpc, "function_name"), (capture_rpc, "stamped"), (rpc_messages, "_ident")],
)
def test_a_hook_that_breaks_is_told_once_and_calls_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'store'}")
    monkeypatch.setattr(module, name, broken)
    with ddptrace.trace(tmp_path / "run"):
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
        try:
            with pytest.warns(RuntimeWarning, match="stopped watching rpc: ZeroDivisionError"):
                assert float(rpc.rpc_sync("alone", here, args=(torch.zeros(1),))) == 1
            assert float(rpc.rpc_sync("alone", here, args=(torch.zeros(1),))) == 1
        finally:
            rpc.shutdown()
    assert [finding.code for finding in read_run(tmp_path / "run").findings] == ["surface-failed"]


def test_workers_without_a_process_group_agree_on_one_run(folder: Path, result: Result) -> None:
    assert "other-run" not in {finding.code for finding in result.findings}
    told_by = {json.loads(path.read_text())["run_id"] for path in (folder / "traced" / "run").glob("rank-*/meta.json")}
    assert told_by == {result.run_id}


class Missing:
    """A function that its callee does not have: what stands for it cannot be read there."""

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return absent, ()

    def __call__(self) -> None: ...


def absent() -> None:
    raise AttributeError("Can't get attribute 'planted'")


def unsendable() -> object:
    return threading.Lock()


def not_late() -> None:
    raise ValueError("the program has set timeout")


@contextmanager
def alone(tmp_path: Path) -> Iterator[None]:
    """A worker with one thread: what follows a call there is then the next call."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path / 'store'}", num_worker_threads=1)
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    try:
        yield
    finally:
        rpc.shutdown()


@ALONE
@pytest.mark.parametrize("first", [True, False])
def test_a_call_to_a_function_that_the_callee_does_not_have_is_its_own_failure_alone(
    tmp_path: Path, first: bool
) -> None:
    with ddptrace.trace(tmp_path / "run"), alone(tmp_path):
        if not first:
            rpc.rpc_sync("alone", here, args=(torch.zeros(1),))
        with pytest.raises(RuntimeError, match="planted"):
            rpc.rpc_sync("alone", Missing())
        rpc.rpc_sync("alone", here, args=(torch.zeros(1),))
    found = read_run(tmp_path / "run")
    assert "surface-failed" not in {finding.code for finding in found.findings}
    rpcs = found.ranks[0].rpc
    assert [(call.function, call.error) for call in rpcs.calls if not call.is_internal] == [
        *([("here", None)] * (not first)), ("Missing", "RuntimeError"), ("here", None),
    ]  # fmt: skip
    runs = [run for run in rpcs.runs if not run.is_internal]
    assert [(run.function, run.failed) for run in runs] == [("here", False)] * len(runs)
    assert all(run.nbytes_back for run in runs) and len(runs) == 2 - first


@ALONE
def test_a_result_that_cannot_be_sent_leaves_the_next_answer_to_its_own_call(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"), alone(tmp_path):
        with pytest.raises(RuntimeError, match="cannot pickle"):
            rpc.rpc_sync("alone", unsendable)
        with pytest.raises(RuntimeError, match="planted"):
            rpc.rpc_sync("alone", Missing())
    (rank,) = read_run(tmp_path / "run").ranks
    (run,) = [run for run in rank.rpc.runs if run.function == "unsendable"]
    assert run.nbytes_back is None


@ALONE
def test_only_torchs_own_error_is_a_timeout(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"), alone(tmp_path):
        with pytest.raises(ValueError, match="set timeout"):
            rpc.rpc_sync("alone", not_late)
    (rank,) = read_run(tmp_path / "run").ranks
    assert [call.error for call in rank.rpc.calls if call.function == "not_late"] == ["ValueError"]


@ALONE
def test_no_two_traces_of_a_process_give_calls_the_same_id(tmp_path: Path) -> None:
    with alone(tmp_path):
        for name in ("a", "b"):
            with ddptrace.trace(tmp_path / name):
                rpc.rpc_sync("alone", here, args=(torch.zeros(1),))
    ids = [{call.id for rank in read_run(tmp_path / name).ranks for call in rank.rpc.calls} for name in ("a", "b")]
    assert all(ids) and not ids[0] & ids[1]


def test_the_end_of_a_references_backward_leaves_other_threads_their_results(tmp_path: Path) -> None:
    recorder = Recorder(lambda: tmp_path)
    surface = Surface("rpc", recorder.note)
    watch = capture_rpc.RpcWatch(recorder, surface, lambda: None)
    call = capture_rpc.Call(1, RpcOp.BACKWARD, 0, 0, 0, -1, 0)
    another = threading.Thread(target=watch._messages.received, args=(None, b"12345", ()))
    another.start()
    another.join()
    watch._fetched(call, 2, None)
    known = watch._messages.carrying(None)
    recorder.close()
    assert known is not None and known.nbytes == 5


def test_a_caller_that_is_no_worker_any_more_has_no_name_and_the_surface_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(lambda: tmp_path)
    monkeypatch.setattr(rpc_workers.Workers, "_own", lambda _: None)
    monkeypatch.setattr(rpc_workers, "_get_current_rpc_agent", lambda: LeftBehind())
    assert rpc_workers.Workers(recorder).caller(7 << CALL_BITS | 1) == 0
    recorder.close()


class LeftBehind:
    def get_worker_info(self, worker: int) -> object:
        raise RuntimeError(f"Unknown destination worker {worker}")


def test_the_compiler_leaves_also_those_frames_alone_that_are_imported_for_remote_calls(tmp_path: Path) -> None:
    program = (
        "import sys, ddptrace\n"
        "from ddptrace.capture import session\n"
        "assert 'ddptrace.capture.rpc.calls' not in sys.modules\n"
        "original = session.leave_as_it_is\n"
        "def told(*packages):\n"
        "    print(*packages, 'ddptrace.capture.rpc.calls' in sys.modules)\n"
        "    original(*packages)\n"
        "session.leave_as_it_is = told\n"
        "with ddptrace.trace(sys.argv[1]): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], env=environment(), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["ddptrace.capture", "ddptrace.record", "True"], done.stderr
