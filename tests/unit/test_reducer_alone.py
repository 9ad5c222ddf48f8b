"""The reducer on one rank: what it tells, in which order it sends, and what it leaves behind."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddptrace.errors import DdptraceError
from ddptrace.reducer import BucketedDataParallel, LayoutMade, ReducerMade
from ddptrace.reducer.bucket import Bucket, Divisor
from ddptrace.reducer.gradients import parameters_reached
from ddptrace.reducer.layout import PATIENCE
from ddptrace.reducer.same_training import SELDOM, Pulse

ONE_EACH = 1e-6  # MiB: a cap that every gradient reaches


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Towers(nn.Module):
    """Two towers; the one that is computed last brings its gradients first."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor, *, right_first: bool = False, use: str = "both") -> Tensor:
        if use != "both":
            return self.left(inputs) if use == "left" else self.right(inputs)
        if right_first:
            right: Tensor = self.right(inputs)
            return self.left(inputs) * right
        left: Tensor = self.left(inputs)
        return left * self.right(inputs)


class Recorder:
    """Keeps all that it is told, as (name, arguments)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append((name, arguments))

    def of(self, name: str) -> list[Any]:
        """The first argument of every such call."""
        return [arguments[0] for called, arguments in self.told if called == name]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]


def step(model: nn.Module, **asked: Any) -> None:
    model(torch.ones(2, 4), **asked).sum().backward()


def test_an_observer_is_told_a_whole_step_in_the_order_in_which_it_happens() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(nn.Linear(4, 4), observer=recorder)
    step(model)
    assert recorder.names[:2] == ["reducer_made", "layout_made"]
    assert recorder.names[2:5] == ["backward_begins", "gradient_ready", "gradient_ready"]
    assert recorder.names[5:7] == ["bucket_launching", "bucket_launched"]
    assert recorder.names[7:] == ["wait_begins", "bucket_done", "backward_ends"]
    made: ReducerMade = recorder.told[0][1][0]
    assert (made.names, made.ranks, made.module) == (("weight", "bias"), 1, "Linear")
    assert all(a is b for a, b in zip(made.parameters, model.module.parameters(), strict=True))
    assert recorder.told[1][1][0] == LayoutMade(0, ((1, 0),))
    assert recorder.told[5][1] == (0, 80)
    assert isinstance(recorder.told[6][1][1], dist.Work)


def test_a_hook_is_told_from_its_begin_to_its_end() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(nn.Linear(4, 4), observer=recorder)
    model.register_comm_hook(None, allreduce_hook)
    step(model)
    at = recorder.names.index("bucket_launching")
    assert recorder.names[at : at + 4] == ["bucket_launching", "hook_begins", "hook_ends", "bucket_launched"]


def test_a_bucket_leaves_while_backward_still_brings_gradients() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), bucket_cap_mb=ONE_EACH)
    model.observe(recorder)
    step(model)
    names = recorder.names
    last_gradient = len(names) - 1 - names[::-1].index("gradient_ready")
    assert names[:last_gradient].count("bucket_launched") == 5
    assert names.index("wait_begins") > last_gradient


def test_buckets_are_sent_in_the_order_of_their_indices_whatever_is_ready_first() -> None:
    # GIVEN a guess that is wrong: it expects the right tower's gradients first
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), bucket_cap_mb=ONE_EACH, observer=recorder)
    # WHEN the left one's come first
    step(model, right_first=True)
    assert set(recorder.of("gradient_ready")[:2]) == {0, 1}
    # THEN they wait for their turn
    assert recorder.of("bucket_launched") == [0, 1, 2, 3]
    first_sent = recorder.names.index("bucket_launched")
    assert {a[0] for n, a in recorder.told[:first_sent] if n == "gradient_ready"} > {0, 1}


def test_buckets_follow_the_real_order_from_the_second_forward_on() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), bucket_cap_mb=ONE_EACH, observer=recorder)
    step(model, right_first=True)
    order = recorder.of("gradient_ready")
    assert len(recorder.of("layout_made")) == 1
    step(model, right_first=True)
    assert recorder.of("layout_made")[1] == LayoutMade(1, tuple((index,) for index in order))
    assert len(recorder.of("layout_made")) == 2


def test_buckets_are_planned_anew_once_the_order_keeps_being_another() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), bucket_cap_mb=ONE_EACH, observer=recorder)
    step(model)
    step(model)
    for _ in range(PATIENCE):
        step(model, right_first=True)
    drifted = recorder.of("gradient_ready")[-4:]
    assert len(recorder.of("layout_made")) == 2
    for _ in range(SELDOM - PATIENCE):  # here, with the next pulse, rank 0's wish travels
        step(model, right_first=True)
    step(model, right_first=True)  # and here it is followed
    assert recorder.of("layout_made")[2] == LayoutMade(2, tuple((index,) for index in drifted))
    for _ in range(3 * PATIENCE):
        step(model, right_first=True)
    assert len(recorder.of("layout_made")) == 3


def test_the_ranks_compare_their_steps_seldom_while_every_backward_is_plain_and_each_time_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    monkeypatch.setattr(Pulse, "read", lambda pulse, read=Pulse.read: compared.append(pulse._sent) or read(pulse))
    model = BucketedDataParallel(Towers(), process_group=dist.new_group())
    # WHEN every backward follows one forward
    for _ in range(2 * SELDOM):
        step(model)
    assert [number for number, sent in enumerate(compared) if sent] == [0, SELDOM]
    # AND WHEN one follows two, and all later ones follow one again
    model(torch.ones(2, 4))
    for _ in range(3):
        step(model)
    assert all(compared[2 * SELDOM :])


def test_the_ranks_compare_their_steps_each_time_where_models_share_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(Pulse, "read", lambda pulse, read=Pulse.read: compared.append(pulse._sent) or read(pulse))
    group = dist.new_group()
    model = BucketedDataParallel(Towers(), process_group=group)
    step(model)
    step(model)
    assert [bool(sent) for sent in compared] == [True, False]
    BucketedDataParallel(Towers(), process_group=group)
    step(model)
    step(model)
    assert [bool(sent) for sent in compared[2:]] == [True, True]


@pytest.mark.parametrize("why", ["a hook keeps state for each bucket", "ranks may use different parameters"])
def test_buckets_are_not_planned_anew_where(why: str) -> None:
    recorder = Recorder()
    unused = why.startswith("ranks")
    model = BucketedDataParallel(Towers(), bucket_cap_mb=ONE_EACH, observer=recorder, find_unused_parameters=unused)
    if not unused:
        model.register_comm_hook(None, allreduce_hook)
    for number in range(SELDOM + 2 * PATIENCE):
        step(model, right_first=number > 2)
    assert len(recorder.of("layout_made")) == (1 if unused else 2)


def test_another_order_inside_the_same_buckets_is_no_reason_for_new_ones() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), observer=recorder)
    for number in range(4 * PATIENCE):
        step(model, right_first=number > 2)
    assert len(recorder.of("layout_made")) == 2


def test_an_observer_that_raises_is_told_nothing_more_and_training_goes_on() -> None:
    class Broken(Recorder):
        def bucket_launched(self, bucket: int, sent: object) -> None:
            raise KeyError("mine")

    broken = Broken()
    model = BucketedDataParallel(nn.Linear(4, 4), observer=broken)
    with pytest.warns(RuntimeWarning, match=r"failed in bucket_launched .* training goes on: KeyError: 'mine'"):
        step(model)
    told = len(broken.told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model)
    assert len(broken.told) == told
    assert model.module.weight.grad is not None


def test_an_observer_that_comes_later_learns_what_there_is_and_none_ends_it() -> None:
    model = BucketedDataParallel(nn.Linear(4, 4))
    step(model)
    step(model)
    recorder = Recorder()
    model.observe(recorder)
    assert recorder.names == ["reducer_made", "layout_made"] and recorder.of("layout_made")[0].layout == 1
    model.observe(None)
    step(model)
    assert len(recorder.told) == 2


@pytest.mark.parametrize("as_view", [True, False])
def test_gradients_are_views_into_their_bucket_where_asked(as_view: bool) -> None:
    model = BucketedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=as_view)
    step(model)
    buffer = model.reducer.layout.buckets[0].buffer
    inside = [p.grad.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr() for p in model.parameters()]
    assert inside == [as_view, as_view]


def test_nothing_is_sent_under_no_sync_and_an_exception_ends_it() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(nn.Linear(4, 4), observer=recorder)
    with pytest.raises(ZeroDivisionError), model.no_sync():
        step(model)
        raise ZeroDivisionError
    assert recorder.of("gradient_ready") and not recorder.of("bucket_launched")
    step(model)
    assert recorder.of("bucket_launched") == [0]


def test_buckets_of_dropped_layers_stay_at_home_and_their_gradients_untouched() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), bucket_cap_mb=ONE_EACH, observer=recorder)
    with model.dropping([model.module.right]):
        step(model, use="left")
    assert model.module.right.weight.grad is None and model.module.left.weight.grad is not None
    sent = {
        index for bucket in recorder.of("bucket_launched") for index in recorder.of("layout_made")[0].buckets[bucket]
    }
    assert sent == {0, 1}
    step(model)
    assert len(recorder.of("bucket_launched")) == 2 + 4


def test_parameters_that_are_unfrozen_get_buckets_and_those_that_are_frozen_lose_them() -> None:
    recorder, module = Recorder(), Towers()
    module.left.requires_grad_(False)
    model = BucketedDataParallel(module, observer=recorder)
    step(model)
    module.left.requires_grad_(True)
    step(model)
    module.right.requires_grad_(False)
    step(model, use="left")
    members = [sorted(index for bucket in made.buckets for index in bucket) for made in recorder.of("layout_made")]
    assert members == [[2, 3], [0, 1, 2, 3], [0, 1]]


def test_a_hook_is_given_what_torchs_grad_bucket_has() -> None:
    seen: list[Any] = []

    def hook(state: object, bucket: Any) -> Any:
        seen.append((state, bucket.index(), bucket.is_last(), [tuple(g.shape) for g in bucket.gradients()]))
        assert all(a is b for a, b in zip(bucket.parameters(), [model.module.bias, model.module.weight], strict=True))
        bucket.gradients()[0].fill_(7)
        bucket.set_buffer(bucket.buffer() * 2)
        future: Any = torch.futures.Future()
        future.set_result([bucket.buffer()])
        return future

    model = BucketedDataParallel(nn.Linear(4, 3))
    model.register_comm_hook("mine", hook)
    step(model)
    assert seen == [("mine", 0, True, [(3,), (3, 4)])]
    assert torch.equal(model.module.bias.grad, torch.full((3,), 14.0))
    assert torch.equal(model.module.weight.grad, torch.full((3, 4), 4.0))


def test_a_state_dict_goes_from_stock_ddp_and_back() -> None:
    stock, own = DistributedDataParallel(nn.Linear(4, 4)), BucketedDataParallel(nn.Linear(4, 4))
    own.load_state_dict(stock.state_dict())
    assert torch.equal(own.module.weight, stock.module.weight)
    stock.load_state_dict(own.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_parameters_and_a_reducer_of_its_own_and_the_same_settings(copied: Any) -> None:
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), bucket_cap_mb=ONE_EACH, find_unused_parameters=True, observer=recorder)
    step(model)
    model.eval()
    twin = copied(model)
    assert not twin.training and not twin.module.training
    assert len(twin.reducer.layout.buckets) == 4 and twin.reducer.layout.number == 0
    assert list(twin.state_dict()) == list(model.state_dict())
    before, told = [parameter.grad.clone() for parameter in model.parameters()], len(recorder.told)
    twin.zero_grad()
    step(twin, use="left")
    assert twin.module.right.weight.grad is None
    assert all(torch.equal(p.grad, kept) for p, kept in zip(model.parameters(), before, strict=True))
    assert len(recorder.told) == told, "an observer stays with the one that it was given to"


def test_a_module_that_stock_ddp_wraps_already_is_refused() -> None:
    with pytest.raises(DdptraceError, match="wrapped already, at '0'"):
        BucketedDataParallel(nn.Sequential(DistributedDataParallel(nn.Linear(4, 4))))


def test_a_model_may_be_dropped_between_forward_and_backward() -> None:
    module = nn.Linear(4, 4)
    model = BucketedDataParallel(module)
    loss = model(torch.ones(2, 4)).sum()
    del model
    gc.collect()
    loss.backward()
    assert module.weight.grad is not None
    again = BucketedDataParallel(module)
    step(again)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_dividing_by_any_number_of_ranks_gives_the_bits_that_torchs_operations_give(kind: torch.dtype) -> None:
    gradient = (100 * torch.randn(999)).to(kind)
    for ranks in (2, 3, 5, 7, 12, 1000):
        parameter = nn.Parameter(torch.zeros(999, dtype=kind))
        parameter.grad = gradient.clone()
        bucket = Bucket(0, [5], [parameter])
        bucket.fill(5, Divisor.of(ranks), as_view=True)
        assert torch.equal(bucket.buffer, torch.mul(gradient, 1.0 / ranks))
        bucket.views[0].copy_(gradient)
        bucket.fill(5, Divisor.of(ranks), as_view=True)
        assert torch.equal(bucket.buffer, gradient.clone().div_(ranks))


def test_a_model_that_is_dropped_is_freed_and_its_module_goes_on_alone() -> None:
    module = nn.Linear(4, 4)
    model = BucketedDataParallel(module)
    step(model)
    gone = weakref.ref(model.reducer)
    del model
    gc.collect()
    assert gone() is None
    assert not module.weight._post_accumulate_grad_hooks
    step(module)


def test_a_forward_without_gradients_changes_nothing() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(nn.Linear(4, 4), observer=recorder)
    step(model)
    with torch.no_grad():
        model(torch.ones(2, 4))
    step(model)
    assert recorder.of("bucket_launched") == [0, 0]


def test_several_forwards_may_share_one_backward() -> None:
    recorder = Recorder()
    model = BucketedDataParallel(Towers(), find_unused_parameters=True, observer=recorder)
    left, right = model(torch.ones(2, 4), use="left"), model(torch.ones(2, 4), use="right")
    (left.sum() + right.sum()).backward()
    assert recorder.of("bucket_launched") == [0]
    assert all(parameter.grad is not None for parameter in model.parameters())


@dataclass
class Output:
    loss: Tensor
    rest: dict[str, list[Tensor]]


def test_parameters_are_reached_through_whatever_a_forward_returns() -> None:
    a, b, c, d = (nn.Parameter(torch.ones(2)) for _ in range(4))
    out = Output(a.exp().sum(), {"hidden": [b * 2, c]})
    assert parameters_reached(out) == {id(a), id(b), id(c)}
    assert parameters_reached((out, {"d": d.sum()})) == {id(a), id(b), id(c), id(d)}
    assert parameters_reached("no tensor at all") == set()


def test_without_a_process_group_there_is_a_sentence() -> None:
    dist.destroy_process_group()
    try:
        with pytest.raises(DdptraceError, match="init_process_group first"):
            BucketedDataParallel(nn.Linear(4, 4))
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Tall(nn.Module):
    """Three layers of 2.25 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(768, 768) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = torch.relu(layer(inputs))
        return inputs


@pytest.mark.parametrize("inside", [True, False])
def test_a_compiled_graph_is_split_so_that_buckets_still_leave_early(inside: bool) -> None:
    graphs: list[object] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    module = Tall()
    if inside:
        model: Any = BucketedDataParallel(torch.compile(module, backend=counting), bucket_cap_mb=2)
    else:
        model = torch.compile(BucketedDataParallel(module, bucket_cap_mb=2), backend=counting)
    model(torch.ones(1, 768)).sum().backward()
    assert len(graphs) == 3, "one graph would bring all gradients at once, at its end"
    alone = copy.deepcopy(module)
    alone.zero_grad()
    alone(torch.ones(1, 768)).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(module.parameters(), alone.parameters(), strict=True))
