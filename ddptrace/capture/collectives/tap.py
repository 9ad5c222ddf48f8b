"""The dispatcher tap: a Python kernel in front of every `c10d` operator, so that collectives are seen on every thread,
whoever issues them: `torch.distributed`, C++ (DDP's reducer), functional collectives, compiled code.

It uses private names of torch, so a self-test proves it when it is installed. Once installed it stays: taking it out
while another thread is inside a collective would end the process. Without a watcher it only passes calls on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ddptrace.capture.collectives import compiled
from ddptrace.capture.surface import unseen
from ddptrace.ops import BY_OPERATOR

NOT_TAPPED = frozenset({"check_for_nan"})


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of `c10d`, and the positions of its arguments; None for an argument that it does not have."""

    name: str  # "all_reduce"
    overload: Any
    group: int
    is_async: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    peer: int | None = None  # the rank to send to or to receive from, or the root: a rank in the group
    splits: int | None = None  # how many rows of the input each rank gets

    def is_sync(self, args: tuple[Any, ...]) -> bool:
        """Whether its caller waits for it. torch leaves out an argument that has its default, which is not to wait."""
        return self.is_async is not None and len(args) > self.is_async and not args[self.is_async]


class Watcher(Protocol):
    """Called for every collective. None of its methods may raise."""

    def before(self, op: Operator, args: tuple[Any, ...]) -> Any:
        """The collective is about to be issued. Returns a token, or None to leave this one out."""

    def after(self, token: Any, op: Operator, args: tuple[Any, ...], work: Any) -> None:
        """It was issued. `work` is torch's Work still boxed, or None."""

    def within(self, token: Any) -> Any:
        """Returns a context manager in which to issue the collective, or None."""

    def awaits(self, tensor: torch.Tensor) -> Any:
        """The host is about to wait for the collective that made a tensor. Returns a token, or None to leave it out."""

    def awaited(self, token: Any) -> None:
        """It has waited."""


_watcher: Watcher | None = None
_library: Any = None  # torch removes the kernels of a library that is garbage-collected
_proven = False


def watch(watcher: Watcher | None) -> None:
    """Set the watcher; None makes the tap inert."""
    global _watcher
    _watcher = watcher
    library = compiled.loaded()
    if library is not None:
        library.ddptrace_watch(watcher is not None)


def install() -> None:
    """Put the tap in place, once per process. Raises whatever torch raises if its private names have moved, and
    RuntimeError each time if the program has put a kernel there before or if the self-test fails."""
    global _library, _proven
    if _library is None:
        _library = _in_place()
    if not _proven:
        _prove()
        _proven = True


def remove() -> None:
    """Take the tap out, for measurements without it. Only while no thread is inside a collective: otherwise the
    process ends."""
    global _library
    for library in _library or ():
        library._destroy()
    _library = None


def _in_place() -> Any:
    ops = operators()
    for op in ops:
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.overload.name(), "BackendSelect"):
            raise RuntimeError(f"the program has put a kernel in front of {op.overload.name()}, which stays")
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library = torch.library.Library("c10d", "IMPL")
    for op in ops:
        library.impl(op.overload, _kernel(op, after), "BackendSelect", with_keyset=True)
    functional = torch.library.Library("_c10d_functional", "IMPL")
    functional.impl("wait_tensor", _waiting_kernel(after), "BackendSelect", with_keyset=True)
    return library, functional


def operators() -> list[Operator]:
    """Return every `c10d` operator of this torch that works on a process group."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")}
    described = (
        _describe(name.removeprefix("c10d::"), schema)
        for name in sorted(names)
        for schema in torch._C._jit_get_schemas_for_operator(name)
    )
    return [op for op in described if op is not None]


def _describe(name: str, schema: Any) -> Operator | None:
    names = [argument.name for argument in schema.arguments]
    if name in NOT_TAPPED or "process_group" not in names:
        return None
    tensors = [i for i, argument in enumerate(schema.arguments) if "Tensor" in str(argument.type)]
    outputs = tuple(i for i in tensors if names[i].startswith("output") or (name.startswith("recv") and i == 0))
    inputs = tuple(i for i in tensors if i not in outputs and names[i] != "sparse_indices" and "barrier" not in name)
    overload = getattr(getattr(torch.ops.c10d, name), schema.overload_name or "default")
    is_async = names.index("async_op") if "async_op" in names else None
    peer = next((i for i, argument in enumerate(names) if argument in PEERS), None)
    splits = names.index("input_split_sizes") if "input_split_sizes" in names else None
    declared = BY_OPERATOR.get(name)
    common = name.strip("_") if declared is None else declared.name
    return Operator(common, overload, names.index("process_group"), is_async, inputs, outputs, peer, splits)


PEERS = ("dst", "src", "root_rank")
"""Names of the argument that is the rank to send to or to receive from, or the root."""


def _kernel(op: Operator, after: Any) -> Callable[..., Any]:
    redispatch = op.overload.redispatch

    def kernel(keyset: Any, *args: Any) -> Any:
        watcher = _watcher
        if watcher is None:
            return redispatch(keyset & after, *args)
        with unseen():
            token = watcher.before(op, args)
        if token is None:
            return redispatch(keyset & after, *args)
        inside = watcher.within(token)
        if inside is None:
            out = redispatch(keyset & after, *args)
        else:
            with inside:
                out = redispatch(keyset & after, *args)
        with unseen():
            watcher.after(token, op, args, (out[-1] if out else None) if isinstance(out, tuple) else out)
        return out

    return kernel


def _waiting_kernel(after: Any) -> Callable[..., Any]:
    redispatch = torch.ops._c10d_functional.wait_tensor.default.redispatch

    def kernel(keyset: Any, tensor: Any) -> Any:
        watcher = _watcher
        is_real = type(tensor) is torch.Tensor  # a compiler's tensor has only a shape
        if watcher is None or not is_real:
            return redispatch(keyset & after, tensor)
        with unseen():
            token = watcher.awaits(tensor)
        out = redispatch(keyset & after, tensor)
        if token is not None:
            watcher.awaited(token)
        return out

    return kernel


class _Counter:
    """The watcher of the self-test."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def before(self, op: Operator, args: tuple[Any, ...]) -> str:
        return op.name

    def after(self, token: str, op: Operator, args: tuple[Any, ...], work: Any) -> None:
        is_work = dist.Work.unbox(work) is not None
        group = dist.ProcessGroup.unbox(args[op.group])
        self.seen.append((token, is_work and group is not None))

    def within(self, token: str) -> None:
        return None

    def awaits(self, tensor: torch.Tensor) -> None:
        return None

    def awaited(self, token: str) -> None:
        return None


def _prove() -> None:
    """One all-reduce must be seen, with its Work and its group."""
    counter, previous, group = _Counter(), _watcher, silent_group()
    watch(counter)
    try:
        with torch._C._DisableTorchDispatch():  # modes of the program do not see it
            group.allreduce([torch.zeros(1)]).wait()
    finally:
        watch(previous)
    if counter.seen != [("all_reduce", True)]:
        raise RuntimeError(f"the self-test saw {counter.seen} instead of one all_reduce")


def silent_group(ranks: int = 1) -> Any:
    """Make a process group that talks to nobody and that `torch.distributed` does not list. This process is rank 0."""
    from torch._C._distributed_c10d import FakeProcessGroup

    group = dist.ProcessGroup(0, ranks)  # type: ignore[call-arg] # the stub knows no group without a store
    make: Any = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)  # the constructor is older
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, make(0, ranks))
    return group
