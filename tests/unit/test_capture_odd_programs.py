"""What a program may do with its own objects: raise where they are asked, compare as it likes, make ever new ones."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.capture.by_identity import IdentityMap, IdentitySet
from ddptrace.capture.origins import call_sites, frames
from ddptrace.capture.origins import modules as module_names
from ddptrace.capture.origins.call_sites import CallSites
from ddptrace.capture.origins.modules import ForwardSpans, ModuleNames
from ddptrace.capture.surface import Surface, ThreadState
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    """As far as torch counts: tests that ran before in this process may have compiled something."""
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()


class Sends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(1))
        return self.inner(x)


class RaisesKeyError(Sends):
    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_parameters"] or name in self.__dict__["_modules"]:
            return super().__getattr__(name)
        raise KeyError(name)


class HasABrokenProperty(Sends):
    require_backward_grad_sync = True

    @property
    def module(self) -> nn.Module:
        raise RuntimeError("broken")


class CannotBeCompared(Sends):
    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not for you")


class HasNoHash(Sends):
    def __eq__(self, other: object) -> bool:
        return self is other

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.inner.parameters()  # torch's own asks for the hash


class OptimizerWithoutHash(torch.optim.SGD):
    def __eq__(self, other: object) -> bool:
        return self is other


class Metric(nn.Module):
    """As torchmetrics': its hash is that of its state, which each update replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __hash__(self) -> int:
        return hash(self.total)

    def forward(self, x: torch.Tensor) -> float:
        self.total += 1.0
        return self.total


class Joined(torch.autograd.Function):
    """Issues a collective in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(5))
        return grads[0]


class Tail(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Joined.apply(x + 1)  # type: ignore[no-any-return, no-untyped-call]


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(2, 2) for _ in range(60)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(1))
        return self.body(x)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def traced(folder: Path, program: Callable[[], object]) -> RankRun:
    """Warnings are errors here: a surface that fails fails the test."""
    with ddptrace.trace(folder):
        program()
    return read_run(folder).ranks[0]


def train(model: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [RaisesKeyError, HasABrokenProperty, CannotBeCompared, HasNoHash])
def test_a_model_that_raises_where_it_is_asked_is_traced_as_any_other(
    group: None, tmp_path: Path, kind: type[nn.Module]
) -> None:
    records = traced(tmp_path / "run", lambda: train(kind()))
    assert [call.module for call in records.calls] == [kind.__name__] * 3
    assert len(records.steps) == 3


@pytest.mark.parametrize("kind", [RaisesKeyError, HasABrokenProperty])
def test_a_module_that_raises_where_it_is_asked_does_not_take_the_names_of_the_others(kind: type[nn.Module]) -> None:
    model = nn.ModuleDict({"odd": kind()})
    assert ModuleNames([model]).name(model["odd"].inner) == "odd.inner"  # type: ignore[arg-type]


def test_the_steps_of_an_optimizer_without_a_hash_are_found(group: None, tmp_path: Path) -> None:
    records = traced(tmp_path / "run", lambda: train(nn.Linear(2, 2), OptimizerWithoutHash))
    assert len(records.steps) == 3


def test_a_model_whose_modules_cannot_be_walked_goes_by_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        raise RuntimeError("no")

    monkeypatch.setattr(module_names, "named", refuse)
    model = Sends()
    assert ModuleNames([model]).name(model.inner) == "Linear"


def test_a_file_that_cannot_be_found_is_named_as_its_code_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setattr("sys.path", [b"/bytes", None, 3, *sys.path])
    for file in (f"{tmp_path}/loop/x.py", "/elsewhere/a\0b"):
        code = compile("", "x", "exec").replace(co_filename=file)
        assert frames.describe(code).kind == frames.SITE
        assert frames.site(code, 7) == f"{file}:7 in <module>"


def test_a_module_whose_hash_changes_is_one_root(group: None, tmp_path: Path) -> None:
    from ddptrace.capture import session

    metric = Metric()

    def measure() -> int:
        for _ in range(50):
            metric(torch.ones(1))
        assert session._current is not None
        return len(session._current.ddp._roots)

    with ddptrace.trace(tmp_path / "run"):
        assert measure() == 1


def test_what_is_known_by_identity_ends_with_its_object_and_leaves_another_one_alone() -> None:
    known: IdentityMap[Metric, str] = IdentityMap()
    first, second = Metric(), Metric()
    known[first], known[second] = "first", "second"
    second.total = 5.0
    assert (known.get(first), known.get(second), list(known)) == ("first", "second", [first, second])
    del first
    gc.collect()
    assert (len(known), known.get(second), Metric() in known) == (1, "second", False)


def test_an_object_at_the_address_of_one_that_is_gone_is_not_taken_for_it() -> None:
    some: IdentitySet[Metric] = IdentitySet()
    one, other = Metric(), Metric()
    some.add(one)
    some._keys._entries[id(other)] = some._keys._entries[id(one)]
    assert (one in some, other in some) == (True, False)


def walks(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that are named from now on, one entry a walk."""
    found: list[nn.Module] = []
    named = module_names.named

    def noted(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        found.append(root)
        return named(root)

    monkeypatch.setattr(module_names, "named", noted)
    return found


def test_modules_made_without_end_do_not_have_the_models_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Teacher()
    roots: list[nn.Module] = [model]
    names, found = ModuleNames(roots), walks(monkeypatch)
    for _ in range(10):
        assert names.name(model.body[3]) == "body.3"
        assert names.name(nn.Tanh()) == "Tanh"  # made inside a forward
        roots[1:] = [nn.Sequential(nn.Tanh())]  # a model of its own
        assert names.name(roots[1][0]) == "0"  # type: ignore[index]
    assert found.count(model) == 1


def test_modules_made_anew_for_each_call_are_not_looked_for_in_all_models_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, looked, contains = Teacher(), [0], module_names.contains

    def counted(root: nn.Module, module: nn.Module) -> bool:
        looked[0] += 1
        return contains(root, module)

    monkeypatch.setattr(module_names, "contains", counted)
    names = ModuleNames([model])
    names.name(model)
    assert {names.name(nn.Tanh()) for _ in range(500)} == {"Tanh"}
    assert looked[0] == module_names.MOST_STRAYS
    # AND a module of another class that is put in is found
    model.body[7] = nn.GELU()
    assert names.name(model.body[7]) == "body.7"


def test_a_module_put_into_a_model_that_has_run_is_named_as_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Teacher(), Teacher()
    names, found = ModuleNames([model, other]), walks(monkeypatch)
    names.name(model)
    model.body[7] = nn.Tanh()
    assert names.name(model.body[7]) == "body.7"
    assert (found.count(model), found.count(other)) == (2, 1)


def test_the_oldest_code_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_sites, "MOST_CODES", 10)
    surface = Surface("origins", lambda code, message: None)
    sites = CallSites(surface, ModuleNames([]), lambda text: 1, ThreadState())
    made = [compile("", f"{number}.py", "exec") for number in range(25)]
    for code in made:
        sites._meet(SimpleNamespace(f_code=code))  # type: ignore[arg-type]
    assert [frame.code.co_filename for frame in sites._known.values()] == [f"{number}.py" for number in range(15, 25)]


def test_no_more_code_than_a_large_program_runs_is_kept_alive() -> None:
    assert call_sites.MOST_CODES <= 2_000


def trained_by(forward: Callable[[Tail, torch.Tensor], torch.Tensor]) -> None:
    """The teacher runs in the calling thread, and so does backward."""
    teacher, student = Teacher(), Tail()
    for _ in range(3):
        target = teacher(torch.ones(1, 2)).detach()
        (forward(student, torch.ones(1, 2, requires_grad=True)) - target).sum().backward()


def in_a_short_lived_thread(student: Tail, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(student, x).result()


def in_a_thread(program: Callable[[], None]) -> None:
    """Where nodes are numbered from 0, as they are in the threads that it makes."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(program).result()


@pytest.mark.parametrize("lives_on", [True, False])
def test_a_graph_that_another_thread_made_is_not_taken_for_one_of_this_thread(
    group: None, tmp_path: Path, lives_on: bool
) -> None:
    with ThreadPoolExecutor(1) as pool:
        forward = lambda student, x: pool.submit(student, x).result()  # noqa: E731
        program = functools.partial(trained_by, forward if lives_on else in_a_short_lived_thread)
        calls = traced(tmp_path / "run", lambda: in_a_thread(program)).calls
    modules = [call.module for call in calls if call.nbytes_in == 20]
    assert len(modules) == 3
    assert set(modules) <= {"Tail", None, ""}


def test_a_module_that_ran_in_one_thread_alone_has_its_name_in_backward(group: None, tmp_path: Path) -> None:
    calls = traced(tmp_path / "run", lambda: trained_by(lambda student, x: student(x))).calls
    assert [call.module for call in calls if call.nbytes_in == 20][1:] == ["Tail", "Tail"]


@pytest.mark.parametrize(("other", "told"), [("tail", ["tail", "tail"]), ("teacher", ["tail", ""])])
def test_where_two_threads_have_run_modules_both_must_say_the_same(other: str, told: list[str]) -> None:
    names = ModuleNames([nn.ModuleDict({"tail": nn.Tanh(), "teacher": nn.Sigmoid()})])
    model = next(iter(names._roots))
    spans = ForwardSpans(Surface("origins", lambda code, message: None), names)
    found: list[str] = []

    def train(name: str) -> None:
        out = spans.around(lambda module, x: module.forward(x))(model[name], torch.ones(1, requires_grad=True))  # type: ignore[index]
        out.grad_fn.register_prehook(lambda _: found.append(spans.name(entered=True)))
        out.sum().backward()

    def first() -> None:
        train("tail")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(train, other).result()

    with ThreadPoolExecutor(1) as pool:  # numbers of nodes begin at 0 in each
        pool.submit(first).result()
    assert found == told


def test_many_models_in_turn_have_their_rebuilt_buckets_told(group: None, tmp_path: Path) -> None:
    """Of models that a Python hook sends for, no collective of C++ tells that they were rebuilt."""

    def train() -> None:
        layers = (nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))) for _ in range(16))
        models = [DistributedDataParallel(model, bucket_cap_mb=0.02) for model in layers]
        for model in models:
            model.register_comm_hook(None, allreduce_hook)
        for _ in range(4):
            for model in models:
                model(torch.ones(2, 64)).sum().backward()

    found = traced(tmp_path / "run", train).reducers
    assert [len(reducer.layouts) for reducer in found] == [2] * 16
