"""What hardly any program does, several things in each."""

from __future__ import annotations

import copy
import io
import os
import pickle
import resource
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, WIDTH, CallsSuper, batch, ddp, join, keep_error, loss_of, network, sgd, train

NOBODY = 65534

Trace = Callable[..., AbstractContextManager[Any]]


@program(ranks=2)
def subclasses_of_ddp_and_optimizers() -> None:
    """Subclasses DDP and an optimizer with slots, and objects that cannot be hashed, compared or asked for a truth."""

    class Mine(DistributedDataParallel):
        __slots__ = ("calls",)

        def forward(self, *inputs: Any, **options: Any) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(*inputs, **options)

        def __len__(self) -> int:
            return 0

    class Odd(torch.optim.SGD):
        __slots__ = ("updates",)
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("not to be compared")

        def __bool__(self) -> bool:
            raise ValueError("neither true nor false")

        def step(self, closure: Any = None) -> Any:
            self.updates = getattr(self, "updates", 0) + 1
            return super().step(closure)

    join()
    model = Mine(network(), bucket_cap_mb=0.0001)
    optimizer = Odd(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        keep(loss)
    keep(model, model.calls, optimizer.updates)
    again = copy.deepcopy(model)
    train(again, None, 2)
    keep_error(pickle.dumps, model)
    buffer = io.BytesIO()
    plain = ddp()
    keep_error(torch.save, plain, buffer)
    train(DistributedDataParallel(DistributedDataParallel(network())), None, 2)


@program(ranks=2)
def operators_of_its_own() -> None:
    """Defines operators by torch.library, which communicate, and trains through them, also compiled and by vmap."""

    @torch.library.custom_op("hostile::summed", mutates_args=())
    def summed(values: torch.Tensor) -> torch.Tensor:
        out = values.clone()
        dist.all_reduce(out)
        return out

    @summed.register_fake
    def _(values: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(values)

    summed.register_autograd(lambda ctx, grad: summed(grad))

    library = torch.library.Library("hostile2", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CompositeImplicitAutograd")

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return summed(self.inner(torch.ops.hostile2.doubled(inputs)))  # type: ignore[no-any-return]

    join()
    train(ddp(Sums()), None, 3)
    torch.library.opcheck(summed, (torch.ones(3),), test_utils=("test_schema", "test_faketensor"))
    library._destroy()


@program(ranks=2)
def autograd_set_otherwise() -> None:
    """Runs backwards in the calling thread, without hooks on saved tensors, for inference, and looks for anomalies."""
    model = ddp()
    with torch.autograd.set_multithreading_enabled(False):
        train(model, None, 2)
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        train(model, None, 2)
    with torch.autograd.graph.save_on_cpu(), torch.autograd.detect_anomaly(check_nan=False):
        train(model, None, 2)
    with torch.inference_mode():
        keep(model(batch()))
        values = torch.ones(3)
        dist.all_reduce(values)
        keep(values)
    with torch.device("meta"):
        other = network()
    keep_error(train, other, None, 1)
    torch.set_default_device("meta")
    try:
        optimizer = sgd(model)
        data = torch.ones(4, WIDTH, device="cpu")
        for _ in range(2):
            model(data).sum().backward()
            optimizer.step()
        keep(model)
    finally:
        torch.set_default_device(None)
    keep(torch.accelerator.is_available(), torch.accelerator.device_count())
    keep_error(torch.accelerator.current_device_index)
    keep_error(torch.accelerator.synchronize)
    keep_error(torch.set_num_interop_threads, 3)


@program()
def optimizers_in_backward() -> None:
    """Updates each parameter as soon as its gradient is there."""
    # It imports what torch.jit scripts, which warns, and with -W error nothing that this file holds could run.
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = network()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    for _ in range(STEPS):
        loss_of(model).backward()
    keep(model)


@program()
def threads_with_little_stack(trace: Trace) -> None:
    """Gives new threads the smallest stack, and refuses threads altogether."""
    before = threading.stack_size(32 << 10)
    try:
        with trace("small"):
            train()
    finally:
        threading.stack_size(before)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = refuse  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings(action="ignore"), trace("refused"):
            train()
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@program()
def imports_impossible(trace: Trace) -> None:
    """Forgets all modules of the tracer, and where modules are found."""
    path, finders, modules = list(sys.path), list(sys.meta_path), dict(sys.modules)
    with trace("forgotten"):
        train()
        for name in list(sys.modules):
            if name.partition(".")[0] == "ddptrace":
                del sys.modules[name]
        train()
    sys.modules.update(modules)
    with trace("nowhere"):
        train()
        sys.path[:], sys.meta_path[:] = [], []
        train()
    sys.path[:], sys.meta_path[:] = path, finders
    train()


@program(notes=frozenset({"no-meta"}))
def without_rights(trace: Trace) -> None:
    """Becomes a user who may write nothing, in the middle."""
    with trace():
        train()
        os.seteuid(NOBODY)
        for _ in range(3):
            train()
    os.seteuid(os.getuid())


@program(notes=frozenset({"surface-failed"}))  # torch's profiler may not get what it needs
def little_memory() -> None:
    """May take only a little more memory than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for more in (64 << 20, 4 << 20, 1 << 20, 1 << 12):
        resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))
        train(None, None, 3)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    train()


@program()
def compiled_in_one_graph() -> None:
    """Calls modules in every way from functions that must compile to one graph."""
    model = network()
    calls_super = CallsSuper()
    data = torch.ones(4, WIDTH)
    bound = model.__call__
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append([str(node.target).partition(" at ")[0] for node in graph.graph.nodes])
        return graph.forward

    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: model(x),
        lambda x: model.__call__(x),
        lambda x: bound(x),
        lambda x: nn.Module.__call__(model, x),
        lambda x: type(model).__call__(model, x),
        lambda x: super(nn.Sequential, model).__call__(x),  # type: ignore[misc]
        lambda x: vars(nn.Module)["__call__"](model, x),
        calls_super,
        lambda x: model.forward(x),
        lambda x: [part(x) for part in (model, model)][1],
        lambda x: next(map(model, (x,))),
        lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)),
        lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False),
    ]
    for way in ways:
        torch.compiler.reset()
        keep_error(lambda way=way: torch.compile(way, backend=backend, fullgraph=True)(data).sum().backward())
    with torch.compiler.set_stance("force_eager"):
        train()
    keep(graphs, model)
