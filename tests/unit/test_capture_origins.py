"""What the stack, the modules and the graph tell of a collective, without one."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from analysis_records import call as call_of
from analysis_records import layout, mark, rank, ready, reducer, run, step
from torch import nn

import ddptrace
from ddptrace.analysis.analyze import analyze_run
from ddptrace.capture import forward_spans, frames
from ddptrace.capture.call_sites import UNKNOWN, CallSites
from ddptrace.capture.forward_spans import ForwardSpans
from ddptrace.capture.module_names import ModuleNames
from ddptrace.capture.surface import Surface, ThreadState
from ddptrace.load import read_run
from ddptrace.load.records.calls import Sources
from ddptrace.schema import UNKNOWN_ORIGIN, CallFlag, Origin, Phase

ROOTS = {"torch": Path(torch.__file__).parent, "ddptrace": Path(ddptrace.__file__).parent}


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    """As far as torch counts: tests that ran before in this process may have compiled something."""
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x)).sin()


class Wrapper(nn.Module):
    """Looks like data parallelism."""

    require_backward_grad_sync = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def source(path: str) -> Path:
    """Of a name like "torch/nn/modules/module.py"."""
    package, _, rest = path.partition("/")
    return ROOTS[package] / rest


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("name", [*frames.FUNCTIONS, *frames.HOLDERS, frames.ENTRY], ids=lambda name: name[1])
def test_every_function_that_tells_something_is_where_it_is_looked_for(name: tuple[str, str]) -> None:
    path = source(name[0])
    found = {code.co_qualname: code for code in codes(compile(path.read_text(), path, "exec"))}
    assert name[1] in found
    assert frames.describe(found[name[1]]).kind != frames.SKIPPED
    local, _ = frames.HOLDERS.get(name, ("", ""))
    assert not local or local in found[name[1]].co_varnames


def test_every_file_that_tells_something_is_where_it_is_looked_for() -> None:
    assert [path for path, _ in frames.FILES if not source(path).exists()] == []


def test_only_the_programs_own_code_is_a_call_site() -> None:
    standard = compile("", os.__file__, "exec")
    kinds = [frames.describe(code).kind for code in (standard, nn.Module.__init__.__code__, ForwardSpans.call.__code__)]
    assert kinds == [frames.SKIPPED] * 3
    assert frames.describe(compile("", "<frozen runpy>", "exec")).kind == frames.SKIPPED
    installed = Path(os.__file__).parent / "site-packages" / "framework" / "loop.py"
    for name in ("/elsewhere/train.py", "train.py", "<string>", str(installed)):
        assert frames.describe(compile("", name, "exec")).kind == frames.SITE, name


def test_a_site_names_its_file_from_the_innermost_folder_of_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    monkeypatch.setattr("sys.path", ["", str(tmp_path), str(package), "relative"])
    for file, name in (
        (package / "deep" / "a.py", "deep/a.py"),
        (tmp_path / "train.py", "train.py"),
        ("<string>", "<string>"),
    ):
        assert frames.site(compile("", str(file), "exec"), 7) == f"{name}:7 in <module>"


def test_modules_are_named_as_in_the_users_model_through_every_wrapper() -> None:
    model = Layered()
    names = ModuleNames([Wrapper(torch.compile(model))])
    assert names.name(model) == "Layered"
    assert names.name(model.inner[0]) == "inner.0"
    whole = nn.ModuleDict({"net": Wrapper(Layered())})
    inner = whole["net"].module.inner  # type: ignore[union-attr]
    assert ModuleNames([whole]).name(inner) == "net.inner"  # type: ignore[arg-type]


def test_a_module_named_module_is_no_wrapper() -> None:
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    assert ModuleNames([model]).name(model["module"]) == "module"


def test_a_module_that_no_model_contains_goes_by_its_class_and_the_larger_model_names_what_both_contain() -> None:
    part = Layered()
    names = ModuleNames([part, nn.ModuleDict({"part": part, "other": Layered()})])
    assert names.name(part.head) == "part.head"
    assert names.name(nn.Tanh()) == "Tanh"


def test_a_model_that_is_gone_does_not_name_the_next_one_at_its_address() -> None:
    roots: list[nn.Module] = []
    names = ModuleNames(roots)
    for number in range(20):
        roots[:] = [nn.ModuleDict({f"layer{number}": nn.Linear(2, 2)})]
        assert names.name(roots[0][f"layer{number}"]) == f"layer{number}"  # type: ignore[index]
    assert len(names._known) < 10
    other = nn.Linear(2, 2)
    entries = names._known._entries
    entries[id(other)] = next(iter(entries.values()))  # as if it had the address of one that is gone
    assert names.name(other) == "Linear"


def spans_of(model: nn.Module) -> ForwardSpans:
    """With every forward of the model going through it."""
    spans = ForwardSpans(Surface("origins", lambda code, message: None), ModuleNames([model]))
    for module in model.modules():
        module.forward = functools.partial(through, spans, module, module.forward)
    return spans


def through(spans: ForwardSpans, module: nn.Module, forward: Callable[..., Any], *args: Any) -> Any:
    return spans.call(lambda _, *rest: forward(*rest), module, args, {})


def nodes_under(out: torch.Tensor) -> Iterator[Any]:
    """Of the graph, from the last one on."""
    ahead: list[Any] = [out.grad_fn]
    for node in ahead:  # grows as it goes
        yield node
        ahead += [one for one, _ in node.next_functions if one is not None]


def test_a_node_of_the_graph_belongs_to_the_innermost_module_that_made_it() -> None:
    model = Layered()
    found: dict[str, list[str]] = defaultdict(list)
    spans = spans_of(model)
    out = model(torch.ones(1, 2)).exp()
    for node in nodes_under(out):
        node.register_prehook(lambda *_, node=node: found[node.name()].append(spans.name(entered=True)))
    out.sum().backward()
    assert {kind: found[kind] for kind in ("ExpBackward0", "SinBackward0", "AddmmBackward0", "TanhBackward0")} == {
        "ExpBackward0": [""],
        "SinBackward0": ["Layered"],
        "AddmmBackward0": ["head", "inner.0"],
        "TanhBackward0": ["inner.1"],
    }
    assert set(found["torch::autograd::AccumulateGrad"]) == {""}


def test_forwards_of_a_step_that_is_not_recorded_leave_no_span() -> None:
    model = Layered()
    spans = spans_of(model)
    for paused, count in ((True, 0), (False, 5)):
        spans._surface.pause(paused)
        model(torch.ones(1, 2))
        assert sum(len(one.ends) for one in spans._all) == count


def test_spans_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_spans, "MOST_SPANS", 10)
    spans = forward_spans._Spans()
    for number in range(100):
        spans.add(2 * number, 2 * number + 1, str(number))
        assert len(spans.ends) <= 10
    assert (spans.around(198), spans.around(0)) == ("99", "")


def test_a_thread_that_gets_the_ident_of_one_that_is_gone_has_its_own_nodes() -> None:
    first, second = Layered(), nn.ModuleDict({"other": nn.Linear(2, 2)})
    spans = ForwardSpans(Surface("origins", lambda code, message: None), ModuleNames([first, second]))
    for module in (*first.modules(), *second.modules()):
        module.forward = functools.partial(through, spans, module, module.forward)
    idents: set[int] = set()
    found: list[str] = []

    def forwards(model: nn.Module, times: int) -> None:
        for _ in range(times):
            out = model(torch.ones(1, 2))
        out.grad_fn.register_prehook(lambda *_: found.append(spans.name(entered=True)))
        out.sum().backward()

    def run() -> None:
        model, times = (second["other"], 1) if threading.get_ident() in idents else (first, 5)
        idents.add(threading.get_ident())
        forwards(model, times)

    for _ in range(100):  # the system chooses
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if found[-1:] != ["Layered"]:
            break
    assert len(found) > len(idents), "every thread had an ident of its own"
    assert found == [*["Layered"] * len(idents), "other"]


def call(*, flags: int = 0, hook: int = 0, seq: int = 7) -> tuple[int, ...]:
    """A CALL record in the order of its fields."""
    return (3, flags, 1, 0, 0, 0, seq, 0, 0, 0, hook, 0, 0)


@pytest.mark.parametrize(
    ("record", "op", "dtype", "origin"),
    [
        (call(), "all_reduce", "float32", "program"),
        (call(hook=3), "all_reduce", "float16", "hook"),
        (call(flags=CallFlag.NATIVE), "all_reduce", "bfloat16", "gradients"),
        (call(flags=CallFlag.NATIVE), "all_reduce", "int32", "unused-parameters"),
        (call(flags=CallFlag.NATIVE), "all_gather_into_tensor", "float32", "program"),
    ],
)
def test_a_call_of_an_older_run_has_the_origin_that_its_own_record_tells(
    record: tuple[int, ...], op: str, dtype: str, origin: str
) -> None:
    assert Sources([], str, {}).of(record, op, dtype) == (origin, None, None, None)


def test_an_origin_of_a_later_version_counts_for_nothing_and_its_line_stays() -> None:
    texts = {1: "train.py:3 in main", 2: "blocks.0", 0: ""}
    told = (24, 200, 1, 1, 0, 0, 7, 0, 0, 2, 0, 0, 0)
    found = Sources([told], texts.__getitem__, {}).of(call(), "all_reduce", "float32")
    assert found == ("program", texts[1], texts[2], None)


def test_where_nobody_looked_the_origin_is_not_known_unless_the_call_itself_tells_it() -> None:
    told = (24, UNKNOWN_ORIGIN, 1, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0)
    sources = Sources([told], {0: ""}.__getitem__, {"": (5, 6, 7, 8)})
    assert [sources.of(made, "all_reduce", "float32").origin for made in (call(), call(hook=3))] == [None, "hook"]
    assert sources.of(call(), "broadcast", "float32").peer == 8


def test_a_surface_that_is_off_does_not_take_collectives_for_the_programs_own(tmp_path: Path) -> None:
    from ddptrace.capture import session

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with ddptrace.trace(tmp_path / "run"):
            dist.all_reduce(torch.ones(1))
            assert session._current is not None
            session._current.surfaces["origins"].off()
            dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()
    (loaded,) = read_run(tmp_path / "run").ranks
    assert [(call.origin, call.site is None) for call in loaded.calls] == [("program", False), (None, True)]


def test_every_origin_has_a_word_of_its_own() -> None:
    assert len({origin.word for origin in Origin}) == len(Origin)
    assert Origin.UNUSED_PARAMETERS.word == "unused-parameters"


def test_a_model_that_is_compiled_stays_one_graph_and_turns_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Layered()
    spans = spans_of(model)
    whole = torch.compile(model, backend="eager", fullgraph=True)
    monkeypatch.setattr(spans, "on", True)
    whole(torch.ones(1, 2))
    monkeypatch.setattr(spans, "on", False)
    spans.turn_on()
    assert not spans.on


def test_a_frame_of_a_graph_that_torch_made_names_no_module() -> None:
    model = Layered()
    sites = CallSites(
        Surface("origins", lambda code, message: None), ModuleNames([model]), lambda text: text, ThreadState()
    )  # type: ignore[arg-type, return-value]
    found = [sites._held(HELD, held(module)) for module in (model, torch.fx.symbolic_trace(model))]
    assert found == ["Layered", UNKNOWN]


HELD = frames.Frame((lambda: None).__code__, frames.MODULE, local="module")


def held(module: nn.Module) -> FrameType:
    return sys._getframe(0)


OWN_CALL = "ddptrace/capture/program.py", "Program._module_call.<locals>.__call__"
COMMON = "torch/distributed/distributed_c10d.py", "all_reduce"
PIPELINE = "torch/distributed/pipelining/schedules.py", "ScheduleGPipe.step"
TRAINING, LAYER = ("train.py", "main"), ("model.py", "Layer.forward")


class Stack:
    """Made frames, outermost first, down to the one that issues a collective."""

    def __init__(self) -> None:
        self.model = Layered()
        self.texts = {"": 0}
        self.thread = ThreadState()
        surface, names = Surface("origins", lambda code, message: None), ModuleNames([self.model])
        self.sites = CallSites(surface, names, lambda text: self.texts.setdefault(text, len(self.texts)), self.thread)

    def read(self, *told: tuple[str, str]) -> tuple[str, str, str]:
        """Origin, line and module of what is issued below such frames."""
        below: Callable[[], Any] = lambda: self.sites.of(sys._getframe(1))  # noqa: E731
        for path, name in reversed(told):
            file = str(source(path)) if "/" in path else path
            code = compile("def made(module, below): return below()", file, "exec").co_consts[0]
            below = functools.partial(FunctionType(code.replace(co_qualname=name), {}), self.model.head, below)
        origin, site, module = below()
        texts = list(self.texts)
        return Origin(origin).word, texts[site], texts[module]


def test_the_programs_own_frame_ends_the_search_for_an_origin() -> None:
    assert Stack().read(TRAINING, PIPELINE, COMMON) == ("pipeline", "train.py:1 in main", "")
    assert Stack().read(TRAINING, PIPELINE, LAYER, COMMON) == ("program", "model.py:1 in Layer.forward", "")
    assert Stack().read(TRAINING, PIPELINE, OWN_CALL, LAYER, COMMON) == (
        "program",
        "model.py:1 in Layer.forward",
        "head",
    )


def test_what_lies_beyond_the_engine_gives_a_line_but_neither_origin_nor_module() -> None:
    found = Stack().read(TRAINING, PIPELINE, OWN_CALL, frames.ENTRY, COMMON)
    assert found == ("program", "train.py:1 in main", "")


def test_a_call_inside_a_hook_is_the_hooks_whatever_is_around_it() -> None:
    stack = Stack()
    stack.thread.hook = 5
    assert stack.read(TRAINING, PIPELINE, COMMON)[0] == "hook"


def test_what_the_program_seems_to_send_for_a_bucket_was_a_hook_that_nobody_saw_being_registered() -> None:
    python = call_of(2, 60, nbytes_in=8, nbytes_out=8, origin="program", site="train.py:3 in hook")
    loss = call_of(3, 95, nbytes_in=4, nbytes_out=4, origin="program")
    one = rank(
        steps=[step(0, 0, 100)],
        phases=[mark(Phase.BACKWARD, 50, 90, 0)],
        calls=[python, loss],
        reducers=[reducer([2], layout(0, 0, (0,)))],
        ready=[ready(0, (0, 55))],
    )
    rows = analyze_run(run(one)).collectives
    assert [(row.bucket is not None, row.origin) for row in rows] == [(True, "hook"), (False, "program")]
