"""Modules are watched, and nothing that looks at them sees a difference."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.schema import Phase

pytestmark = pytest.mark.long

TORCHS_OWN = vars(nn.Module)["__call__"]


class Nest(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


class Summed(torch.autograd.Function):
    """Issues a collective in forward, as tensor-parallel layers do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(out := x.clone())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(out := grads[0].clone())
        return out


class Parallel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Summed.apply(x)  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def deepest(innermost: Callable[[], nn.Module]) -> int:
    """How many modules nest before Python's recursion limit."""
    depth, x = 100, torch.ones(1, requires_grad=True)
    while True:
        model = innermost()
        for _ in range(depth):
            model = Nest(model)
        try:
            model(x)
        except RecursionError:
            return depth
        depth += 1


def train(steps: int = 3) -> None:
    model = nn.Sequential(Nest(nn.Linear(4, 4)), nn.ReLU(), Nest(nn.Linear(4, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def forwards(folder: Path) -> int:
    return sum(phase.phase is Phase.FORWARD for phase in read_run(folder).ranks[0].phases)


def python_frames(program: Callable[[], None], file: Path) -> Counter[str]:
    """Frames that torch.profiler records with stacks: modules, and functions outside of ddptrace."""
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True, record_shapes=True) as window:
        program()
    window.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "python_function"]
    return Counter(name for name in names if name.startswith(("nn.Module", "torch/nn", "torch/optim")))


def test_modules_nest_as_deep_as_without_a_trace(tmp_path: Path) -> None:
    plain = deepest(nn.Identity)
    with ddptrace.trace(tmp_path / "run"):
        assert plain - deepest(nn.Identity) <= 1  # the outermost one takes a frame


def test_modules_nest_as_deep_where_modules_issue_collectives_in_backward(tmp_path: Path, group: None) -> None:
    plain, limit = deepest(Parallel), sys.getrecursionlimit()
    with ddptrace.trace(tmp_path / "run"):
        Parallel()(torch.ones(1, requires_grad=True)).sum().backward()  # from here on, nodes are told by module
        assert deepest(Parallel) >= plain
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("profiled_before", [True, False])
def test_stacks_of_the_programs_own_profiler_are_those_without_a_trace(tmp_path: Path, profiled_before: bool) -> None:
    """torch keeps, for good, the code that stands for a module's call when the first profiler with stacks starts."""
    program = f"""
from pathlib import Path
import ddptrace
from tests.unit.test_capture_module_calls import python_frames, train
folder = Path({str(tmp_path)!r})
train()  # torch patches the optimizer's class once
before = python_frames(train, folder / "before.json") if {profiled_before} else None
with ddptrace.trace(folder / "run"):
    inside = python_frames(train, folder / "inside.json")
after = python_frames(train, folder / "after.json")
assert inside == after and before in (None, after), (before, inside, after)
assert inside["nn.Module: Nest_0"] == inside["nn.Module: Linear_1"] == 3, inside
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert forwards(tmp_path / "run") == 3


def test_the_class_shows_torchs_own_function(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"):
        standing = vars(nn.Module)["__call__"]
        assert inspect.isfunction(standing) and inspect.signature(standing) == inspect.signature(TORCHS_OWN)
        assert nn.Module.__call__ is TORCHS_OWN
        assert nn.Linear.__call__ is TORCHS_OWN
    assert vars(nn.Module)["__call__"] is TORCHS_OWN


def test_modules_are_watched_again_after_torch_fx_has_traced_a_model(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"):
        train()
        torch.fx.symbolic_trace(Nest(nn.Linear(4, 4)))
        train()
    assert forwards(tmp_path / "run") == 5  # the first forward after torch.fx has put its function back is not seen
    assert "patch-kept" not in {finding.code for finding in read_run(tmp_path / "run").findings}


def test_what_the_program_puts_around_modules_runs_as_often_as_without_a_trace(tmp_path: Path) -> None:
    def run() -> list[int]:
        seen: list[str] = []

        def noted(module: nn.Module, *args: Any) -> Any:
            seen.append(type(module).__name__)
            return TORCHS_OWN(module, *args)

        counts = []
        with mock.patch.object(nn.Module, "__call__", noted):
            train()  # the trace watches again from the first backward on
            counts.append(len(seen))
        train()
        return [*counts, len(seen)]

    plain = run()
    with ddptrace.trace(tmp_path / "run"):
        assert run() == plain
        assert nn.Module.__call__ is TORCHS_OWN
    assert vars(nn.Module)["__call__"] is TORCHS_OWN
    assert forwards(tmp_path / "run") == 5


def test_a_function_that_the_program_leaves_in_place_stays(tmp_path: Path) -> None:
    def noted(module: nn.Module, *args: Any) -> Any:
        return TORCHS_OWN(module, *args)

    try:
        with ddptrace.trace(tmp_path / "run"):
            nn.Module.__call__ = noted  # type: ignore[method-assign]
            train()
        assert vars(nn.Module)["__call__"] is noted
        assert "patch-kept" in {finding.code for finding in read_run(tmp_path / "run").findings}
        with ddptrace.trace(tmp_path / "next"):
            train()
        assert vars(nn.Module)["__call__"] is noted
    finally:
        nn.Module.__call__ = TORCHS_OWN  # type: ignore[method-assign]
    assert forwards(tmp_path / "next") == 3


def test_any_object_that_the_program_has_put_into_the_class_is_called_as_python_would(tmp_path: Path) -> None:
    class Counted:
        calls = 0

        def __get__(self, module: Any, owner: type) -> Any:
            Counted.calls += 1
            return self if module is None else TORCHS_OWN.__get__(module, owner)

    def run() -> int:
        Counted.calls = 0
        nn.Module.__call__ = Counted()  # type: ignore[method-assign, assignment]
        try:
            train()
        finally:
            nn.Module.__call__ = TORCHS_OWN  # type: ignore[method-assign]
        return Counted.calls

    plain = run()
    nn.Module.__call__ = kept = Counted()  # type: ignore[method-assign, assignment]
    try:
        with ddptrace.trace(tmp_path / "run"):
            Counted.calls = 0
            train()
            assert Counted.calls == plain
        assert vars(nn.Module)["__call__"] is kept
    finally:
        nn.Module.__call__ = TORCHS_OWN  # type: ignore[method-assign]
    assert forwards(tmp_path / "run") == 3


def test_a_module_is_called_by_its_bound_method_too(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run"):
        model = nn.Linear(4, 4)
        assert model.__call__ == model.__call__
        call = model.__call__
        call(torch.ones(1, 4)).sum().backward()
    assert forwards(tmp_path / "run") == 1
    assert call(torch.ones(1, 4)).shape == (1, 4)


COMPILED: dict[str, Callable[[nn.Module, Callable[..., Any], torch.Tensor], torch.Tensor]] = {
    "bound before": lambda model, bound, x: bound(x) * 2,
    "bound inside": lambda model, bound, x: model.__call__(x) * 2,
    "by the class": lambda model, bound, x: nn.Module.__call__(model, x) * 2,
    "by super": lambda model, bound, x: super(Nest, model).__call__(x) * 2,  # type: ignore[misc]
    "from the class's dictionary": lambda model, bound, x: vars(nn.Module)["__call__"](model, x) * 2,
}


@pytest.mark.parametrize("way", COMPILED)
def test_a_compiled_function_calls_a_module_in_one_graph(tmp_path: Path, way: str) -> None:
    model, call = Nest(nn.Linear(4, 4)), COMPILED[way]
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    def train() -> None:
        torch.compiler.reset()
        bound = model.__call__
        compiled = torch.compile(lambda x: call(model, bound, x), backend=backend, fullgraph=True)
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()

    train()
    with ddptrace.trace(tmp_path / "run"):
        train()
    assert len(graphs) == 2 and graphs[0] == graphs[1]
    assert forwards(tmp_path / "run") == 0  # what is compiled is no module's call any more
