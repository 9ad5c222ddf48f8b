"""What modules can be and become while they train."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import pickle
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm
from torch.optim import swa_utils

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import (
    STEPS,
    WIDTH,
    CallsSuper,
    batch,
    ddp,
    keep_error,
    loss_of,
    network,
    sgd,
    steps,
    train,
)

Trace = Callable[..., AbstractContextManager[Any]]


class Slots(nn.Module):
    """Has slots beside its dict."""

    __slots__ = ("counted", "inner")

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0
        self.body = network()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.counted += 1
        return self.body(inputs)  # type: ignore[no-any-return]


@program(ranks=2)
def modules_with_slots() -> None:
    """Trains a module with `__slots__`."""
    model = Slots()
    train(ddp(model))
    keep(model.counted)


class CallsByClass(CallsSuper):
    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.Module.__call__(self, inputs) * 3  # type: ignore[no-any-return]


class CallsWithoutModule(CallsSuper):
    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.forward(inputs) * 4


class CallsInside(CallsSuper):
    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._call_impl(inputs) * 5  # type: ignore[no-any-return]


@program()
def call_overridden() -> None:
    """Overrides `__call__` in every way that there is."""
    for kind in (CallsSuper, CallsByClass, CallsWithoutModule, CallsInside):
        train(kind())
    called = nn.Module.__call__
    keep(called(network(), batch()), network().__call__(batch()), nn.Linear.__call__(nn.Linear(8, 2), batch()))
    keep(list(map(network(), [batch(1)])), functools.partial(network(), batch())())
    keep(callable(nn.Linear(1, 1)), callable(nn.Module.__call__), called.__name__ in ("__call__", "_wrapped_call_impl"))


@program()
def call_replaced_before_inside_and_after(trace: Trace) -> None:
    """Replaces `nn.Module.__call__` before, inside and after the trace, and takes each wrapper off again."""
    original = vars(nn.Module)["__call__"]
    calls: list[str] = []

    def wrapper(name: str) -> Callable[..., Any]:
        inner = vars(nn.Module)["__call__"]

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(f"{name} {type(self).__name__}")
            return inner(self, *args, **kwargs)

        return __call__

    nn.Module.__call__ = wrapper("before")  # type: ignore[method-assign]
    with trace():
        train()
        before = vars(nn.Module)["__call__"]
        nn.Module.__call__ = wrapper("inside")  # type: ignore[method-assign]
        train()
        nn.Module.__call__ = before  # type: ignore[method-assign]
        train()
    nn.Module.__call__ = wrapper("after")  # type: ignore[method-assign]
    train()
    nn.Module.__call__ = original
    train()
    keep(calls)


@program(notes=frozenset({"patch-kept"}))
def call_replaced_and_left(trace: Trace) -> None:
    """Replaces functions of torch inside the trace and leaves them replaced."""
    original, backward, step = vars(nn.Module)["__call__"], torch.autograd.backward, torch.optim.SGD.step
    calls: list[str] = []
    with trace():
        inner, inner_backward = vars(nn.Module)["__call__"], torch.autograd.backward

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(type(self).__name__)
            return inner(self, *args, **kwargs)

        def theirs(*args: Any, **kwargs: Any) -> Any:
            calls.append("backward")
            return inner_backward(*args, **kwargs)

        nn.Module.__call__ = __call__  # type: ignore[method-assign]
        torch.autograd.backward = theirs
        train()
    train()
    nn.Module.__call__, torch.autograd.backward = original, backward  # type: ignore[method-assign]
    train()
    keep(calls, torch.optim.SGD.step is step)


@program()
def monkeypatched_torch() -> None:
    """Replaces functions and methods of torch with wrappers of its own, and removes some."""
    functions = [
        (torch.Tensor, "backward"),
        (torch.Tensor, "__add__"),
        (nn.Linear, "forward"),
        (nn.Module, "_call_impl"),
        (nn.Module, "parameters"),
        (nn.Module, "named_modules"),
        (nn.Module, "children"),
        (nn.Module, "__getattr__"),
        (nn.Module, "__setattr__"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.optim.SGD, "step"),
        (torch.autograd, "grad"),
        (torch, "randn"),
        (torch.nn.functional, "linear"),
    ]
    for owner, name in functions:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        setattr(owner, name, wrapper)
        train()
        setattr(owner, name, original)


@program()
def deleted_attributes() -> None:
    """Deletes attributes of modules, classes and torch that nobody should need."""
    model = network()
    optimizer = sgd(model)
    del model.training
    del model[0]._forward_hooks_with_kwargs
    keep_error(train, model, optimizer, 1)
    model.training = True
    model[0]._forward_hooks_with_kwargs = {}
    del nn.Sequential.extend, nn.Linear.extra_repr, torch.nn.functional.gelu, torch.Tensor.to_sparse_coo
    for name in ("backward_hooks", "named_buffers"):
        vars(model).pop(name, None)
    train(model, optimizer)
    del model[1]
    train(model)


@program()
def odd_attributes() -> None:
    """Models that raise, lie or count when they are asked."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()
            self.asked: list[str] = []

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                vars(self).setdefault("asked", []).append(name)
            if name == "body":
                return super().__getattr__(name)
            raise KeyError(name)

        def __len__(self) -> int:
            raise RuntimeError("no length")

        def __bool__(self) -> bool:
            raise RuntimeError("neither true nor false")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not to be compared")

        def __hash__(self) -> int:
            raise RuntimeError("no hash")

        def __repr__(self) -> str:
            raise RuntimeError("no name")

        def __iter__(self) -> Any:
            raise RuntimeError("not to be walked")

        def parameters(self, recurse: bool = True) -> Any:
            return self.body.parameters()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(inputs)  # type: ignore[no-any-return]

    model = Odd()
    optimizer = sgd(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch()).sum()
        loss.backward()
        optimizer.step()
        keep(loss)
    keep(model.body, model.asked)


@program()
def properties_of_modules() -> None:
    """Counts how often its properties and `__getattribute__` are asked."""
    asked: dict[str, int] = {}

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        @property
        def module(self) -> nn.Module:
            asked["module"] = asked.get("module", 0) + 1
            raise RuntimeError("broken")

        @property
        def require_backward_grad_sync(self) -> bool:
            asked["sync"] = asked.get("sync", 0) + 1
            return True

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(inputs)  # type: ignore[no-any-return]

    train(Counted())
    keep(asked)


FRAMES_OF_A_MODULE = 4
"""By which each one comes nearer to the recursion limit: torch's two, its forward, and Python's own for `__call__`."""


class Deep(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = nn.Identity()
        for _ in range(depth):
            around = nn.Sequential(self.inner)
            self.inner = around

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs)  # type: ignore[no-any-return]


@program()
def nested_modules() -> None:
    """Nests modules as deep as Python's recursion limit allows with a few frames to spare."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    model = Deep((sys.getrecursionlimit() - depth - 20) // FRAMES_OF_A_MODULE)
    keep(model(batch()))
    deeper = Deep(sys.getrecursionlimit())
    for _ in range(3):
        with contextlib.suppress(RecursionError):
            keep("not too deep", deeper(batch()))
    train()


@program()
def recursion_error_caught() -> None:
    """Recurses too deep in a forward, catches it, and goes on."""

    class Endless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self(inputs) if inputs.sum() == 0 else self.body(inputs)  # type: ignore[no-any-return]

    model = Endless()
    for _ in range(3):
        error = None
        try:
            model(torch.zeros(4, WIDTH))
        except RecursionError as caught:
            error = type(caught).__name__
        keep(error)
        train(model, None, 2)


@program()
def memory_error_caught() -> None:
    """Asks for more memory than there is in forward, backward and update, and goes on."""

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * 1

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            raise MemoryError("in backward")

    model = network()
    train(model)
    for size in (1 << 60, 1 << 62):
        error = keep_error(lambda size=size: model(torch.empty(size)))
        assert isinstance(error, RuntimeError)
    keep_error(lambda: model(bytearray(1 << 62)))
    keep_error(lambda: Greedy.apply(model(batch())).sum().backward())
    train(model)


@program(ranks=2)
def pickled_and_copied() -> None:
    """Pickles and copies modules, optimizers and functions of torch inside the trace."""
    model = ddp()
    optimizer = sgd(model)
    for _ in steps(model, optimizer, 3):
        pass
    copied = copy.deepcopy(model.module)
    again = pickle.loads(pickle.dumps(copied))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "whole": model.module, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    train(copied, None, 2)
    train(again, None, 2)
    train(loaded["whole"], None, 2)
    functions = [
        torch.autograd.backward,
        torch.autograd.grad,
        nn.Linear,
        nn.Module,
        torch.optim.SGD,
        torch.amp.GradScaler,
        torch.distributed.all_reduce,
        torch.utils.data.DataLoader,
        functools.partial(torch.autograd.backward),
    ]
    for function in functions:
        keep(pickle.loads(pickle.dumps(function)) == function)
        keep(copy.deepcopy(function) is not None)
    ddp_again = pickle.loads(pickle.dumps(model))
    keep(type(ddp_again).__name__)


@program()
def pickled_on_its_way() -> None:
    """Is pickled in a forward hook, whose modules are in the middle of a call."""
    model = network()

    def store(module: nn.Module, inputs: Any, output: Any) -> None:
        keep(len(pickle.dumps(module.state_dict())), copy.deepcopy(module).weight.sum())

    handle = model[0].register_forward_hook(store)
    train(model)
    handle.remove()
    train(pickle.loads(pickle.dumps(model)))


@program(ranks=2)
def hooks_of_modules() -> None:
    """Registers every hook that modules have, on one and on all."""
    model = ddp()
    seen: list[str] = []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, *rest: Any, **kwargs: Any) -> None:
            seen.append(f"{name} {type(module).__name__} {len(rest)}")

        return hook

    linear = model.module[0]
    handles = [
        linear.register_forward_pre_hook(note("before"), with_kwargs=True),
        linear.register_forward_hook(note("after"), always_call=True, with_kwargs=True, prepend=True),
        linear.register_full_backward_pre_hook(note("backward")),
        linear.register_full_backward_hook(note("backward over")),
        linear.register_state_dict_pre_hook(note("state")),
        nn.modules.module.register_module_forward_pre_hook(note("all before")),
        nn.modules.module.register_module_forward_hook(note("all after")),
        nn.modules.module.register_module_full_backward_hook(note("all backward")),
        nn.modules.module.register_module_module_registration_hook(note("registered")),
    ]
    train(model)
    model.state_dict()
    network()
    for handle in handles:
        handle.remove()
    train(model)
    keep(seen)


@program(ranks=2)
def parametrized() -> None:
    """Computes its weights from others: weight norm, spectral norm, orthogonal, pruned, parametrized."""
    body = network(layers=4)
    parametrizations.weight_norm(body[0])
    parametrizations.spectral_norm(body[2])
    parametrizations.orthogonal(body[4])
    prune.random_unstructured(body[6], "weight", amount=0.3)

    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    square = nn.Linear(WIDTH, WIDTH)
    parametrize.register_parametrization(square, "weight", Symmetric())
    model = ddp(nn.Sequential(square, body))
    train(model)
    for _ in range(2):
        with parametrize.cached():
            train(body, None, 1)
    parametrize.remove_parametrizations(square, "weight")
    prune.remove(body[6], "weight")
    train(model.module)


@program()
def weight_norm_of_old() -> None:
    """Uses the weight norm that works by a forward pre-hook."""
    train(nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 2)))


@program()
def lazy_modules() -> None:
    """Learns its shapes, and its classes, in the first forward."""
    model = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    keep([type(part).__name__ for part in model])
    keep(model(batch()).shape)
    keep([type(part).__name__ for part in model])
    train(model)


@program()
def mutated_on_the_way() -> None:
    """Adds, replaces and removes modules and parameters between steps, and inside a forward."""
    model = network()
    train(model)
    model.append(nn.Linear(2, 2))
    train(model)
    model[1] = nn.ReLU()
    model.insert(0, nn.Identity())
    train(model)
    del model[-1]
    model.register_parameter("extra", nn.Parameter(torch.ones(2)))
    model.register_buffer("counted", torch.zeros(1))
    train(model)

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([network()])

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.parts.append(nn.Tanh())
            for part in list(self.parts):
                inputs = part(inputs)
            return inputs

    train(Growing())


@program()
def class_changed() -> None:
    """Changes the class of a module, and makes one as callable as it likes."""
    model = network()
    train(model)

    class Louder(type(model)):  # type: ignore[misc]
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * 2  # type: ignore[no-any-return]

    model.__class__ = Louder
    train(model)
    model.forward = lambda inputs: Louder.forward(model, inputs) * 3
    train(model)
    del model.forward

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class OfMeta(nn.Linear, metaclass=Meta):
        pass

    train(OfMeta(WIDTH, 2))


@program()
def shared_and_cyclic() -> None:
    """Shares modules and parameters, and refers to its parent."""
    shared = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(WIDTH, 2))
    other = nn.Linear(WIDTH, WIDTH)
    other.weight = shared.weight
    model.append(nn.Identity())
    object.__setattr__(shared, "parent", model)
    shared.other = other
    train(model)


@program(ranks=2)
def averaged_models() -> None:
    """Keeps averages of a model, clips gradients, and schedules rates."""
    model = ddp()
    optimizer = sgd(model)
    average = swa_utils.AveragedModel(model.module)
    exponential = swa_utils.AveragedModel(model.module, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    swa = swa_utils.SWALR(optimizer, swa_lr=0.05)
    for step in steps(model, optimizer):
        keep(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        average.update_parameters(model.module)
        exponential.update_parameters(model.module)
        if step:
            (schedule if step < 3 else swa).step()
    keep(optimizer.param_groups[0]["lr"])
    keep(average, exponential, average(batch()))


@program()
def collected_on_the_way() -> None:
    """Drops models during the trace; their weak references and finalizers tell of it in the same order."""
    told: list[str] = []

    class Told(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.body, self.name = network(), name

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(inputs)  # type: ignore[no-any-return]

        def __del__(self) -> None:
            told.append(f"{self.name} is deleted")

    for number in range(4):
        model = Told(f"model {number}")
        weakref.finalize(model, told.append, f"model {number} is finalized")
        reference = weakref.ref(model, lambda _, number=number: told.append(f"model {number} is gone"))
        parameter = weakref.ref(model.body[0].weight, lambda _: told.append("a weight is gone"))
        optimizer = sgd(model)
        for _ in range(3):
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
        del model, optimizer, loss
        gc.collect()
        told.append(f"{reference() is None} {parameter() is None}")
    keep(told)


@program()
def functions_of_torch_func() -> None:
    """Transforms a model: grad, vmap, jacrev, functional_call, stacked ensembles."""
    from torch.func import functional_call, grad, grad_and_value, jacrev, stack_module_state, vmap

    model = network()
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return functional_call(model, parameters, (inputs,)).pow(2).mean()  # type: ignore[no-any-return]

    inputs = batch()
    for _ in range(STEPS):
        gradients, value = grad_and_value(loss)(parameters, inputs)
        parameters = {name: (value - 0.1 * gradients[name]).detach() for name, value in parameters.items()}
        keep(value, *gradients.values())
    keep(*vmap(grad(loss), in_dims=(None, 0))(parameters, inputs.unsqueeze(1)).values())
    keep(jacrev(lambda inputs: functional_call(model, parameters, (inputs,)))(inputs))
    stacked, buffers = stack_module_state([network(), network()])
    base = copy.deepcopy(network()).to("meta")
    keep(vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(stacked, buffers, inputs))
    train(model)


@program()
def on_meta_and_fake() -> None:
    """Runs models that have shapes only, beside a real one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    keep(empty(torch.empty(4, WIDTH, device="meta")).shape)
    with FakeTensorMode():
        fake = nn.Sequential(nn.Linear(WIDTH, 2))
        out = fake(torch.empty(4, WIDTH)).sum()
        out.backward()
        keep(type(out).__name__, tuple(out.shape))
    train(nn.Sequential(nn.Linear(WIDTH, 2), nn.Identity()))
    train(empty.to_empty(device="cpu").apply(lambda one: [value.detach().fill_(0.1) for value in one.parameters()]))


@program()
def modes_of_torch() -> None:
    """Trains under dispatch and function modes of its own, which count what passes."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    counted: dict[str, int] = {}

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted[str(function)] = counted.get(str(function), 0) + 1
            return function(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", str(function))
            counted[name] = counted.get(name, 0) + 1
            return function(*args, **(kwargs or {}))

    model = network()
    with Dispatched():
        train(model)
    with Called():
        train(model)
    with Dispatched(), Called():
        train(model)
    keep(without_profiler(counted))


def without_profiler(counted: dict[str, int]) -> list[tuple[str, int]]:
    """A profiler's ranges go through the dispatcher, whosever profiler it is."""
    return sorted((name, count) for name, count in counted.items() if not name.startswith("profiler."))


@program(ranks=2)
def modes_beside_collectives() -> None:
    """Counts what DDP and collectives dispatch under a mode of its own."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    counted: dict[str, int] = {}

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted[str(function)] = counted.get(str(function), 0) + 1
            return function(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", str(function))
            counted[name] = counted.get(name, 0) + 1
            return function(*args, **(kwargs or {}))

    model = ddp()
    with Dispatched(), Called():
        train(model)
        value = batch()
        torch.distributed.all_reduce(value)
        keep(value)
    keep(without_profiler(counted))


class Marked(torch.Tensor):
    """A subclass that stays what it is through every operation."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A subclass that holds another tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, inner.size(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Wrapped({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = torch.utils._pytree.tree_map_only(cls, lambda one: one.inner, (args, kwargs or {}))
        out = function(*unwrapped[0], **unwrapped[1])
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, out)


@program(ranks=2)
def tensor_subclasses() -> None:
    """Trains with tensors of classes of its own, and sends them."""
    model = ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        out = model(batch().as_subclass(Marked))
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        keep(type(out).__name__, loss)
    marked = torch.ones(4).as_subclass(Marked)
    torch.distributed.all_reduce(marked)
    keep(type(marked).__name__, marked)
    keep_error(lambda: network()(Wrapped(batch())))
    value = Wrapped(torch.ones(4))
    keep_error(torch.distributed.all_reduce, value)
    keep(value.inner)


@program(notes=frozenset({"patch-kept"}))
def call_mocked(trace: Trace) -> None:
    """Mocks `nn.Module.__call__` and its like before, inside and across the trace, with specifications of all kinds."""
    original = nn.Module.__call__
    calls: list[str] = []

    def effect(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return original(self, *args, **kwargs)

    def mocked() -> Any:
        return mock.patch.object(nn.Module, "__call__", autospec=True, side_effect=effect)

    before, across = mocked(), mocked()
    before.start()
    with trace("first"):
        train()
        before.stop()
        with mocked():
            train()
        with mock.patch("torch.nn.Module.__call__", new=effect):
            train()
        for owner, name in ((torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.optim.SGD, "step")):
            with mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)) as one:
                train()
            keep(one.call_count)
    with trace("second"):
        across.start()
        train()
    across.stop()
    train()
    keep(len(calls))
    nn.Module.__call__ = original  # type: ignore[method-assign]


@program()
def call_compared() -> None:
    """Compares what stands in `nn.Module` as `__call__`, shows it, pickles it and calls it with anything."""
    held, function = vars(nn.Module)["__call__"], nn.Module._wrapped_call_impl
    model = network()
    keep(held == function, function == held, held != function, {held: 1}[function], hash(held) == hash(function))
    keep(repr(held) == repr(function), dir(held) == dir(function), pickle.loads(pickle.dumps(held)) is function)
    keep(copy.deepcopy(held) == function)
    for given in ((), (5,), (5, 6), (model,), (model, 1)):
        keep_error(held, *given)
    train(model)


@program()
def classes_that_cannot_be_hashed() -> None:
    """Has a module whose class raises when it is hashed, compared, shown or asked for its instances."""

    class Odd(type):
        def _refuse(cls, *_: object) -> Any:
            raise TypeError("not to be asked")

        __hash__ = __instancecheck__ = __subclasscheck__ = __repr__ = __eq__ = _refuse

    class Model(nn.Module, metaclass=Odd):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.body(inputs)  # type: ignore[no-any-return]

    train(Model())


@program(ranks=2)
def tensors_swapped() -> None:
    """Converts a model that it has taken out of DDP, and has torch swap its tensors, which nothing may refer to."""
    model = ddp()
    loss_of(model).backward()
    inner = model.module
    del model
    gc.collect()
    torch.__future__.set_swap_module_params_on_conversion(True)
    for kind in (torch.float64, torch.float32):
        keep_error(inner.to, kind)
    torch.__future__.set_swap_module_params_on_conversion(False)
    train(inner)
