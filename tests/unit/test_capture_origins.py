"""What the stack, the modules and the graph tell of a collective, without one."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from ddptrace.capture.origins import call_sites, frames, modules
from ddptrace.capture.origins import modules as module_names
from ddptrace.capture.origins.call_sites import UNKNOWN, CallSites
from ddptrace.capture.origins.modules import ForwardSpans, ModuleNames
from ddptrace.capture.surface import Surface, ThreadState
from ddptrace.load.records.calls import CallOrigins
from ddptrace.load.run import read_run
from ddptrace.schema import UNKNOWN_ORIGIN, CallFlag, Origin, Phase

ROOTS = {"torch": Path(torch.__file__).parent, "ddptrace": Path(ddptrace.__file__).parent}
LIBRARIES = Path("/env/lib/site-packages")


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
    """Of a name like "torch/nn/modules/module.py", or one of a library."""
    package, _, rest = path.partition("/")
    return ROOTS[package] / rest if package in ROOTS else LIBRARIES / path


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
    codes = standard, nn.Module.__init__.__code__, ForwardSpans.around.__code__
    kinds = [frames.describe(code).kind for code in codes]
    assert kinds == [frames.SKIPPED] * 3
    for name in ("<frozen runpy>", "<@beartype(framework.run) at 0x7f0000000000>", "<decorator-gen-7>"):
        assert frames.describe(compile("", name, "exec")).kind == frames.SKIPPED
    for name in ("/elsewhere/train.py", "train.py", "<string>"):
        assert frames.describe(compile("", name, "exec")).kind == frames.SITE, name


def test_what_is_installed_is_a_library_and_so_are_the_lines_that_start_an_installed_program() -> None:
    installed = Path(os.__file__).parent / "site-packages" / "framework" / "loop.py"
    started = Path(sys.executable).parent / "train-it"
    for name in (str(installed), "/usr/lib/python3/dist-packages/framework/loop.py", str(started)):
        assert frames.describe(compile("", name, "exec")).kind == frames.LIBRARY, name


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
    return spans.around(lambda _, *rest: forward(*rest))(module, *args)


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
    monkeypatch.setattr(modules, "MOST_SPANS", 10)
    spans = modules._Spans()
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
    assert CallOrigins([], str, {}).of(record, op, dtype) == (origin, None, None, None, None)


def test_an_origin_of_a_later_version_counts_for_nothing_and_its_line_stays() -> None:
    texts = {1: "train.py:3 in main", 2: "blocks.0", 0: ""}
    told = (24, 200, 1, 1, 0, 0, 7, 0, 0, 2, 0, 0, 0)
    found = CallOrigins([told], texts.__getitem__, {}).of(call(), "all_reduce", "float32")
    assert found == ("program", texts[1], None, texts[2], None)


def test_a_call_site_of_two_lines_is_read_as_the_programs_and_the_librarys() -> None:
    texts = {1: "train.py:3 in main, through framework/loop.py:9 in run", 2: "blocks.0", 0: ""}
    told = (24, Origin.ZERO, 1, 1, 0, 0, 7, 0, 0, 2, 0, 0, 0)
    found = CallOrigins([told], texts.__getitem__, {}).of(call(), "all_reduce", "float32")
    assert found == ("zero", "train.py:3 in main", "framework/loop.py:9 in run", "blocks.0", None)


def test_where_nobody_looked_the_origin_is_not_known_unless_the_call_itself_tells_it() -> None:
    told = (24, UNKNOWN_ORIGIN, 1, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0)
    sources = CallOrigins([told], {0: ""}.__getitem__, {"": (5, 6, 7, 8)})
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


def test_a_library_that_has_something_else_in_that_variable_names_no_module() -> None:
    model = Layered()
    sites = Stack().sites
    for local in ("module", "missing"):
        library = frames.Frame((lambda: None).__code__, frames.LIBRARY, local=local)
        assert sites._held(library, held(model)) == UNKNOWN


HELD = frames.Frame((lambda: None).__code__, frames.MODULE, local="module")


def held(module: nn.Module) -> FrameType:
    return sys._getframe(0)


MODULE_CALL = "torch/nn/modules/module.py", "Module._wrapped_call_impl"
COMMON = "torch/distributed/distributed_c10d.py", "all_reduce"
PIPELINE = "torch/distributed/pipelining/schedules.py", "ScheduleGPipe.step"
TRAINING, LAYER = ("train.py", "main"), ("model.py", "Layer.forward")


def called_by(told: Sequence[tuple[str, str]], below: Callable[[], Any], module: nn.Module) -> Callable[[], Any]:
    """`below`, called through functions of these files and names, outermost first."""
    for path, name in reversed(told):
        file = str(source(path)) if "/" in path else path
        code = compile("def made(self, below): return below()", file, "exec").co_consts[0]
        below = functools.partial(FunctionType(code.replace(co_qualname=name), {}), module, below)
    return below


class Stack:
    """Made frames, outermost first, down to the one that issues a collective."""

    def __init__(self) -> None:
        self.model = Layered()
        self.texts = {"": 0}
        self.thread = ThreadState()
        surface, names = Surface("origins", lambda code, message: None), ModuleNames([self.model])
        self.sites = CallSites(surface, names, lambda text: self.texts.setdefault(text, len(self.texts)), self.thread)

    def read(self, *told: tuple[str, str], in_a_thread: bool = False) -> tuple[str, str, str]:
        """Origin, line and module of what is issued below such frames. `in_a_thread`: with no frame of a test above."""
        below = called_by(told, lambda: self.sites.of(sys._getframe(1)), self.model.head)
        with ThreadPoolExecutor(1) as pool:
            met, remembered = [pool.submit(below).result() if in_a_thread else below() for _ in range(2)]
        assert met == remembered
        origin, site, module = met
        texts = list(self.texts)
        return Origin(origin).word, texts[site], texts[module]


def test_the_programs_own_frame_ends_the_search_for_an_origin() -> None:
    assert Stack().read(TRAINING, PIPELINE, COMMON) == ("pipeline", "train.py:1 in main", "")
    assert Stack().read(TRAINING, PIPELINE, LAYER, COMMON) == ("program", "model.py:1 in Layer.forward", "")
    assert Stack().read(TRAINING, PIPELINE, MODULE_CALL, LAYER, COMMON) == (
        "program",
        "model.py:1 in Layer.forward",
        "head",
    )


def test_what_lies_beyond_the_engine_gives_a_line_but_neither_origin_nor_module() -> None:
    found = Stack().read(TRAINING, PIPELINE, MODULE_CALL, frames.ENTRY, COMMON)
    assert found == ("program", "train.py:1 in main", "")


def test_a_call_inside_a_hook_is_the_hooks_whatever_is_around_it() -> None:
    stack = Stack()
    stack.thread.hook = 5
    for around in (PIPELINE, SAVES):
        assert stack.read(TRAINING, around, COMMON)[0] == "hook"


LOOP, SENDS = ("framework/loop.py", "Loop.run"), ("framework/sync.py", "mean")
PASSES, PASSES_TOO = ("accelerate/utils/operations.py", "gather"), ("accelerate/accelerator.py", "Accelerator.gather")
SAVES = "torch/distributed/checkpoint/state_dict_saver.py", "save"
ZERO = "deepspeed/runtime/zero/"
MADE = "deepspeed/runtime/engine.py", "DeepSpeedEngine.__init__"
SAVED = "deepspeed/runtime/engine.py", "DeepSpeedEngine.save_16bit_model"


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ([TRAINING, LOOP, SENDS, COMMON], "train.py:1 in main, through framework/sync.py:1 in mean"),
        ([TRAINING, LOOP, PASSES, COMMON], "train.py:1 in main, through framework/loop.py:1 in Loop.run"),
        (
            [TRAINING, PASSES_TOO, PASSES, COMMON],
            "train.py:1 in main, through accelerate/accelerator.py:1 in Accelerator.gather",
        ),
        ([TRAINING, LOOP, LAYER, COMMON], "model.py:1 in Layer.forward"),
        ([TRAINING, LOOP, LAYER, SENDS, COMMON], "model.py:1 in Layer.forward, through framework/sync.py:1 in mean"),
        ([TRAINING, LOOP, frames.ENTRY, COMMON], "train.py:1 in main"),  # that library has only called backward
        ([TRAINING, LOOP, frames.ENTRY, LOOP, frames.ENTRY, COMMON], "train.py:1 in main"),
        ([TRAINING, LOOP, frames.ENTRY, SENDS, COMMON], "train.py:1 in main, through framework/sync.py:1 in mean"),
    ],
)
def test_a_librarys_line_stands_beside_the_programs(told: list[tuple[str, str]], line: str) -> None:
    assert Stack().read(*told)[1] == line


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ([LOOP, SENDS, COMMON], "framework/sync.py:1 in mean"),
        ([LOOP, PASSES, COMMON], "framework/loop.py:1 in Loop.run"),
        ([PASSES_TOO, PASSES, COMMON], "accelerate/accelerator.py:1 in Accelerator.gather"),
        ([LOOP, frames.ENTRY, SENDS, COMMON], "framework/sync.py:1 in mean"),
        ([LOOP, frames.ENTRY, COMMON], "framework/loop.py:1 in Loop.run"),
        ([COMMON], ""),
    ],
)
def test_where_no_frame_is_the_programs_the_librarys_line_stands_alone(told: list[tuple[str, str]], line: str) -> None:
    assert Stack().read(*told, in_a_thread=True)[1] == line


def test_a_stack_that_issues_nothing_has_the_line_of_the_program_and_without_one_that_of_a_library() -> None:
    found = []
    for told in ([TRAINING, LOOP, SENDS], [LOOP, SENDS], []):
        below = called_by(told, lambda: frames.program_line(sys._getframe(1)), nn.Identity())
        with ThreadPoolExecutor(1) as pool:  # with no frame of a test above
            found.append(pool.submit(below).result())
    assert found == ["train.py:1 in main", "framework/sync.py:1 in mean", ""]


@pytest.mark.parametrize(
    ("told", "origin"),
    [
        ([(f"{ZERO}stage_1_and_2.py", "DeepSpeedZeroOptimizer.allreduce_bucket")], "zero"),
        ([(f"{ZERO}stage_1_and_2.py", "DeepSpeedZeroOptimizer.get_grad_norm_direct")], "agreement"),
        ([(f"{ZERO}stage3.py", "DeepSpeedZeroOptimizer_Stage3.__avg_scatter_grads")], "zero"),
        ([(f"{ZERO}stage3.py", "DeepSpeedZeroOptimizer_Stage3.has_overflow")], "agreement"),
        ([(f"{ZERO}utils.py", "get_lst_from_rank0")], "agreement"),
        ([MADE, (f"{ZERO}stage3.py", "DeepSpeedZeroOptimizer_Stage3._setup_for_real_optimizer")], "construction"),
        ([SAVED, (f"{ZERO}partition_parameters.py", "GatheredParameters.__enter__")], "checkpoint"),
        ([(f"{ZERO}partition_parameters.py", "GatheredParameters.__enter__")], "zero"),
        ([("deepspeed/runtime/engine.py", "DeepSpeedEngine.buffered_allreduce_fallback")], "zero"),
        ([("deepspeed/moe/sharded_moe.py", "_AllToAll.forward")], "moe"),
        ([("deepspeed/moe/sharded_moe.py", "top1gating")], "agreement"),
        ([("deepspeed/runtime/pipe/p2p.py", "send")], "pipeline"),
        ([("deepspeed/runtime/engine.py", "DeepSpeedEngine.forward")], "program"),
        ([("deepspeed/runtime/zero/stage3.py", "f"), LAYER], "program"),
        ([SAVES, ("torch/distributed/tensor/_redistribute.py", "redistribute")], "checkpoint"),
    ],
)  # fmt: skip
def test_a_known_part_of_deepspeed_has_an_origin_and_a_construction_or_checkpoint_has_all_that_it_calls(
    told: list[tuple[str, str]], origin: str
) -> None:
    assert Stack().read(TRAINING, *told, COMMON)[0] == origin


def test_the_modules_of_parameters_that_are_gathered_are_named_in_the_order_of_the_model() -> None:
    model = nn.ModuleDict({f"layer{number}": nn.Linear(2, 2) for number in range(12)})
    names = ModuleNames([model])
    wanted = [model[f"layer{number}"].weight for number in (11, 2, 10)]
    assert names.owners([*wanted, model["layer2"].bias]) == ["layer2", "layer10", "layer11"]
    assert names.owners([nn.Parameter(torch.ones(1))]) == []
    assert call_sites.some_of(["a", "b", "c"]) == "a, b, c"
    assert call_sites.some_of(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_a_model_is_not_walked_again_for_parameters_that_none_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[nn.Module] = []
    monkeypatch.setattr(module_names, "named_modules", lambda root: walks.append(root) or iter(()))
    names, strays = ModuleNames([Layered()]), [nn.Parameter(torch.ones(1))]
    for _ in range(3):
        names.owners(strays)
    assert len(walks) == 1


def test_a_parameter_is_not_taken_out_of_a_dict_that_acts_when_it_is() -> None:
    class Gathers(OrderedDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("DeepSpeed would gather it over the ranks")

        def values(self) -> Any:
            raise AssertionError("DeepSpeed would gather all of them")

    model = nn.Linear(2, 2)
    weight = model.weight
    model._parameters = Gathers(model._parameters)
    assert ModuleNames([model]).owners([weight]) == ["Linear"]


def test_deepspeeds_engine_is_a_wrapper() -> None:
    class DeepSpeedEngine(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = Layered()
    names = ModuleNames([type("PipelineEngine", (DeepSpeedEngine,), {})(model)])
    assert [names.name(model), names.name(model.head)] == ["Layered", "head"]


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
