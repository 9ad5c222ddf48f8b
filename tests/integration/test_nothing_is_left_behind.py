"""After a trace every patched object is the very one that was there, and whoever was in a collective is not hurt."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim
from torch.profiler.profiler import _KinetoProfile
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import ddptrace
from ddptrace.capture.origins.modules import named_modules
from ddptrace.load.run import read_run

PATCHED = [
    (nn.Module, "__call__"),
    (torch.autograd, "backward"),
    (torch.amp.GradScaler, "step"),
    (_BaseDataLoaderIter, "__next__"),
    (DistributedDataParallel, "register_comm_hook"),
    (dist.Work, "wait"),
    (autograd_profiler.profile, "_prepare_trace"),
    (autograd_profiler.profile, "__exit__"),
    (autograd_profiler.profile, "_start_trace"),
    (_KinetoProfile, "export_chrome_trace"),
]


def patched_objects() -> list[object]:
    hooks = [dict(optim._global_optimizer_pre_hooks), dict(optim._global_optimizer_post_hooks), list(gc.callbacks)]
    return [vars(owner)[name] for owner, name in PATCHED] + hooks + [open_files()]


def open_files() -> list[str]:
    """What this process holds open, sockets and the system's own files as well."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this very look
            found.append(f"{file.name} {file.readlink()}")
    return sorted(found)


def assert_as_before(before: list[object]) -> None:
    after = patched_objects()
    count = len(PATCHED)
    assert all(a is b for a, b in zip(before[:count], after[:count], strict=True))
    assert before[count:-1] == after[count:-1]
    assert set(after[-1]) <= set(before[-1])  # type: ignore[call-overload] # lists


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()


def test_inside_a_trace_things_are_patched_and_after_it_they_are_not(tmp_path: Path, group: None) -> None:
    before = patched_objects()
    model = DistributedDataParallel(nn.Linear(8, 8))
    with ddptrace.trace(tmp_path / "run"):
        assert all(vars(owner)[name] is not original for (owner, name), original in zip(PATCHED, before, strict=False))
        assert len(gc.callbacks) > len(before[-2])  # type: ignore[arg-type] # a list
        train(model)
    assert_as_before(before)
    assert all(p._post_accumulate_grad_hooks is None for p in model.parameters())


def test_an_exception_in_the_loop_passes_through_and_leaves_nothing(tmp_path: Path) -> None:
    before = patched_objects()
    with pytest.raises(ZeroDivisionError), ddptrace.trace(tmp_path / "run"):
        train(nn.Linear(8, 8), steps=2)
        raise ZeroDivisionError
    assert_as_before(before)
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.steps) == 2
    assert rank.clean


def test_an_exception_inside_forward_backward_or_update_does_not_spoil_the_steps_that_follow(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    with ddptrace.trace(tmp_path / "run"):
        train(model)
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 9))
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 8)).backward()
        train(model)
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.steps) == 6


def test_a_nested_trace_is_refused_in_one_sentence_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    before = patched_objects()
    with ddptrace.trace(tmp_path / "run"):
        train(nn.Linear(8, 8), steps=1)
        with (
            pytest.raises(ddptrace.TraceStateError, match=r"already recording into .*run"),
            ddptrace.trace(tmp_path / "b"),
        ):
            pass
        train(nn.Linear(8, 8), steps=1)
    assert_as_before(before)
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.steps) == 2
    assert not (tmp_path / "b").exists()


def test_on_off_on_again_records_twice_and_nothing_between(tmp_path: Path, group: None) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    with ddptrace.trace(tmp_path / "a"):
        train(model, steps=2)
    train(model, steps=5)
    with ddptrace.trace(tmp_path / "b"):
        train(model, steps=3)
    for name, steps in (("a", 2), ("b", 3)):
        (rank,) = read_run(tmp_path / name).ranks
        assert len(rank.steps) == steps
        assert sum(call.is_native for call in rank.calls) == steps


def test_a_patch_that_somebody_replaced_meanwhile_is_left_to_them_and_told(tmp_path: Path) -> None:
    original = vars(torch.autograd)["backward"]
    try:
        with ddptrace.trace(tmp_path / "run"):
            ours = torch.autograd.backward
            theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
            torch.autograd.backward = theirs
        assert torch.autograd.backward is theirs
        train(nn.Linear(8, 8), steps=1)  # through their wrapper and our inert one
    finally:
        torch.autograd.backward = original
    assert "patch-kept" in {finding.code for finding in read_run(tmp_path / "run").findings}


def test_a_hook_registered_inside_stays_and_only_passes_on_afterwards(tmp_path: Path, group: None) -> None:
    calls = []

    def hook(state, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name, or nothing
        state.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(nn.Linear(8, 8))
    with ddptrace.trace(tmp_path / "run"):
        model.register_comm_hook(calls, hook)
        train(model, steps=2)
    train(model, steps=2)
    assert len(calls) == 4
    (rank,) = read_run(tmp_path / "run").ranks
    assert [(h.name, h.index) for h in rank.hooks] == [("hook", 0), ("hook", 0)]


def test_a_thread_that_communicates_all_the_while_is_never_hurt(tmp_path: Path, group: None) -> None:
    stop, done, failures = threading.Event(), [], []

    def communicate() -> None:
        tensor = torch.ones(64)
        while not stop.is_set():
            try:
                dist.all_reduce(tensor)
                done.append(1)
            except BaseException as error:  # whatever it is, it is what this test looks for
                failures.append(error)
                return

    thread = threading.Thread(target=communicate)
    thread.start()
    try:
        for i in range(20):
            with ddptrace.trace(tmp_path / f"run-{i}"):
                train(nn.Linear(8, 8), steps=2)
    finally:
        stop.set()
        thread.join()
    assert not failures
    recorded = sum(len(read_run(tmp_path / f"run-{i}").ranks[0].calls) for i in range(20))
    assert 0 < recorded <= len(done)


def test_workers_forked_inside_a_trace_write_nothing_into_it(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    dataset = TensorDataset(torch.randn(32, 8))

    def in_worker(batch: list[tuple[torch.Tensor]]) -> torch.Tensor:
        model(batch[0][0])
        return torch.stack([item[0] for item in batch])

    with warnings.catch_warnings(), ddptrace.trace(tmp_path / "run"):
        warnings.simplefilter("ignore", DeprecationWarning)
        for inputs in DataLoader(
            dataset, batch_size=4, num_workers=2, collate_fn=in_worker, multiprocessing_context="fork"
        ):
            model(inputs)
    (rank,) = read_run(tmp_path / "run").ranks
    assert {mark.thread for mark in rank.phases} == {os.getpid()}
    assert rank.clean


def test_a_forked_child_keeps_neither_callbacks_nor_files_of_the_trace(tmp_path: Path) -> None:
    before = gc.callbacks.copy(), files_with_a_path()
    with ddptrace.trace(tmp_path / "run"):
        train(nn.Linear(8, 8))
        # One may be forked while the keeper has a file open for a moment, of which it knows nothing: not all of them.
        assert 0 in [_status_of_child(lambda: (gc.callbacks, files_with_a_path()) == before) for _ in range(5)]
        assert gc.callbacks != before[0] and files_with_a_path() != before[1]


def files_with_a_path() -> list[str]:
    """Without sockets and the like, which other libraries that this process has met make anew in a forked child."""
    return [one for one in open_files() if one.split(" ", 1)[1].startswith("/")]


def _status_of_child(holds: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(not holds())
    return os.waitpid(child, 0)[1]


def test_a_surface_that_fails_warns_once_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddptrace.capture.steps.finder import StepFinder

    def broken(*_: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(StepFinder, "backward_ends", broken)
    with pytest.warns(RuntimeWarning, match="stopped watching program: LookupError: planted") as warned:
        with ddptrace.trace(tmp_path / "run"):
            train(nn.Linear(8, 8), steps=3)
    assert sum("planted" in str(w.message) for w in warned) == 1
    assert "surface-failed" in {finding.code for finding in read_run(tmp_path / "run").findings}


def test_where_the_tap_cannot_be_proven_python_callers_are_still_seen(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddptrace.capture.collectives import tap

    def moved() -> None:
        raise AttributeError("planted: a private name has moved")

    monkeypatch.setattr(tap, "install", moved)
    before = dict(vars(dist.ProcessGroup))
    with ddptrace.trace(tmp_path / "run"):
        tensor = torch.ones(8)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.barrier()
        dist.all_gather([torch.ones(8)], tensor)
    assert all(vars(dist.ProcessGroup)[name] is method for name, method in before.items())
    run = read_run(tmp_path / "run")
    seen = [call.op for call in run.ranks[0].calls]
    assert seen == ["all_reduce", "broadcast", "barrier", "all_gather"]
    assert [call.nbytes_in for call in run.ranks[0].calls] == [32, 32, 0, 32]
    assert "tap-failed" in {finding.code for finding in run.findings}
    assert run.manifest["watching"]["collectives"] == "ProcessGroup class"


def test_leaving_a_trace_whose_directory_was_deleted_meanwhile_raises_nothing(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"):
        train(nn.Linear(8, 8))
        shutil.rmtree(tmp_path / "run")
        train(nn.Linear(8, 8))


def test_a_wrapper_that_somebody_keeps_is_inert_after_the_trace(tmp_path: Path, group: None) -> None:
    original = vars(nn.Module)["__call__"]
    try:
        with ddptrace.trace(tmp_path / "run"):
            ours = vars(nn.Module)["__call__"]
            call = lambda module, *args: ours.__get__(module, type(module))(*args)  # noqa: E731
            nn.Module.__call__ = call  # type: ignore[method-assign]
        model = DistributedDataParallel(nn.Linear(8, 8))
        train(model)
        assert all(p._post_accumulate_grad_hooks is None for p in model.parameters())
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def test_a_model_dropped_during_the_trace_is_freed(tmp_path: Path, group: None) -> None:
    with ddptrace.trace(tmp_path / "run"):
        model = DistributedDataParallel(nn.Linear(8, 8))
        train(model)
        parameter = weakref.ref(next(model.parameters()))
        del model
        gc.collect()
        assert parameter() is None


def test_hooks_come_off_the_parameters_also_where_their_surface_had_failed(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

    def walked(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if isinstance(root, Odd):
            raise LookupError("planted")
        return named_modules(root)

    monkeypatch.setattr("ddptrace.capture.gradients.ddp.named_modules", walked)
    model = DistributedDataParallel(nn.Linear(8, 8))

    def loop() -> None:
        train(model)
        Odd()(torch.ones(1))
        train(model)

    with (
        pytest.warns(RuntimeWarning, match="stopped watching ddp: LookupError: planted"),
        ddptrace.trace(tmp_path / "run"),
    ):
        loop()
    assert all(p._post_accumulate_grad_hooks is None for p in model.parameters())


def test_a_forward_may_have_a_keyword_of_any_name(tmp_path: Path) -> None:
    class Named(nn.Module):
        def forward(self, inputs: torch.Tensor, module: str = "", steps: int = 0) -> torch.Tensor:
            return inputs

    with ddptrace.trace(tmp_path / "run"):
        Named()(torch.ones(1), module="a", steps=1)


def test_an_interrupt_in_our_own_lines_does_not_end_the_finding_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddptrace.capture.steps.finder import StepFinder

    original, left = StepFinder.forward_begins, [KeyboardInterrupt]

    def interrupted(finder: StepFinder) -> int:
        if left:
            raise left.pop()
        return original(finder)

    monkeypatch.setattr(StepFinder, "forward_begins", interrupted)
    with ddptrace.trace(tmp_path / "run"):
        with pytest.raises(KeyboardInterrupt):
            train(nn.Linear(8, 8))
        train(nn.Linear(8, 8))
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.steps) == 3


@pytest.mark.parametrize(
    ("part", "error"), [("claim.Claim.write_meta", KeyboardInterrupt()), ("session.Recorder", OSError(28, "planted"))]
)
def test_a_start_that_fails_leaves_no_hook_no_thread_and_a_free_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    before, threads = patched_objects(), threading.active_count()
    with monkeypatch.context() as planted:
        planted.setattr(f"ddptrace.capture.{part}", broken)
        expected = pytest.raises(KeyboardInterrupt) if part.startswith("claim") else pytest.warns(match="planted")
        with expected, ddptrace.trace(tmp_path / "run"):
            pass
    assert_as_before(before)
    assert threading.active_count() == threads
    assert not list((tmp_path / "run").iterdir())
    with ddptrace.trace(tmp_path / "run"):
        train(nn.Linear(8, 8), steps=2)
    assert len(read_run(tmp_path / "run").ranks[0].steps) == 2


@pytest.mark.parametrize("name", ["_update_begins", "_update_ends"])
def test_what_fails_around_an_update_does_not_come_out_of_the_optimizers_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from ddptrace.capture.steps.program_hooks import Program

    def broken(*_: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(Program, name, broken)
    with (
        pytest.warns(RuntimeWarning, match="stopped watching program: LookupError: planted"),
        ddptrace.trace(tmp_path / "run"),
    ):
        train(nn.Linear(8, 8))


def test_updates_of_two_threads_at_once_are_each_told_from_their_own_begin(tmp_path: Path) -> None:
    inside, over = threading.Event(), threading.Event()

    def closure() -> float:
        inside.set()
        over.wait(timeout=30)
        return 0.0

    outer, inner = (torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(2))
    thread = threading.Thread(target=outer.step, args=(closure,))
    with ddptrace.trace(tmp_path / "run"):
        thread.start()
        inside.wait(timeout=30)
        inner.step()
        over.set()
        thread.join()
    (rank,) = read_run(tmp_path / "run").ranks
    first, second = sorted((mark.begin_at_ns, mark.end_at_ns) for mark in rank.phases)
    assert first[0] < second[0] <= second[1] < first[1]


def test_threads_that_train_one_after_the_other_under_one_ident_are_all_watched(tmp_path: Path) -> None:
    with warnings.catch_warnings(), ddptrace.trace(tmp_path / "run"):
        warnings.simplefilter("error")
        idents: list[int | None] = [0]
        for _ in range(50):  # until Python gives the ident of a thread that has ended to the next one
            thread = threading.Thread(target=train, args=(nn.Linear(8, 8), 2))
            thread.start()
            idents.append(thread.ident)
            thread.join()
            if idents[-2] == idents[-1]:
                break
    assert idents[-2] == idents[-1]
    assert not [finding for finding in read_run(tmp_path / "run").findings if finding.code == "surface-failed"]
