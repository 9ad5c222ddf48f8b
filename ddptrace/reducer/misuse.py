"""The user's arguments, checked before any rank is asked, and messages for misuse.

Misuse: gradients too few or too many, models and hooks that differ, ranks that are gone. A wrong argument raises
DdptraceError, which says what to do instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypedDict

import torch
import torch.distributed as dist
from torch import nn

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import is_above_zero

NAMED_AT_MOST = 5
GRAPH_OF_GRADIENTS = (
    "A backward with create_graph=True would give each gradient a graph, which no flat bucket holds: take "
    "second derivatives by torch.autograd.grad, or under no_sync()."
)

DROPS_DIFFER = (
    "Ranks do not drop the same layers in this step; decide with `LayerDrop`, whose choices depend only on a shared "
    "seed, the step and the layer."
)

STORE_IS_GONE = "the process that holds the store is gone (a rank may have ended: see its output)."
STORE_IS_SILENT = "the process that holds the store does not answer: it may be stopped, or be cut off."

Groups = dist.ProcessGroup | Sequence[dist.ProcessGroup]


def did_not_come(rank: int, missing: Sequence[int], what: str, timeout_s: float) -> str:
    """`missing`: the ranks that were waited for in vain, some of them where they are many."""
    more = " and others" if len(missing) > NAMED_AT_MOST else ""
    named = f"Rank {', '.join(map(str, missing[:NAMED_AT_MOST]))}{more}" if missing else "Some rank"
    return (
        f"{named} did not come to {what} within {timeout_s:g} s, and rank {rank} did: all ranks must make the same "
        "models and use them alike."
    )


def gave_up(rank: int, what: str, waited_s: float, elsewhere: str = "") -> str:
    """`elsewhere`: where another rank is known to be, if one is."""
    where = f", for {elsewhere}" if elsewhere else ""
    return (
        f"Rank {rank} waited {waited_s:.0f} s for {what} and gave up: another rank did not come to it{where}; see what "
        "it last did: it may have left its loop, failed, or skipped a backward."
    )


def another_hook(rank: int, hook: str, first: int, other: str) -> str:
    return (
        f"Rank {rank} has {hook} where rank {first} has {other}: register the same communication hook, with the same "
        "settings and at the same place, on every rank."
    )


def not_in_one_step(first: int, last: int, rank: int, mine: int) -> str:
    """`first`, `last`, `mine`: numbers of the forwards that the rank furthest behind, the one furthest ahead and this
    one are in."""
    return (
        f"Ranks are not in the same step: one is in forward {first}, another in forward {last} and rank {rank} in "
        f"{mine}, so that gradients of different steps would be mixed. A rank ran a forward without a backward, or "
        "went on after an exception: do so on every rank or on none."
    )


def another_model(rank: int, number: int, me: int, mine: int) -> str:
    """`number`, `mine`: of the models that two ranks are in, among those over their group."""
    return (
        f"Ranks run different models in this step: of those over this group, rank {rank} is in number {number} and "
        f"rank {me} in number {mine}. Use the models in the same order on every rank."
    )


def changed(rank: int, name: str, now: str, before: str) -> str:
    """`now`, `before`: what the parameter is, and was when its bucket was made."""
    return (
        f"Parameter {name!r} on rank {rank} is {now} now and was {before} when the module was wrapped: convert or move "
        "a module before it is wrapped, and wrap it again if it changes later."
    )


def unfinished(rank: int, missing: Sequence[str]) -> str:
    """`missing`: names of the parameters that got no gradient."""
    more = f" and {len(missing) - NAMED_AT_MOST} more" if len(missing) > NAMED_AT_MOST else ""
    named = ", ".join(map(repr, missing[:NAMED_AT_MOST])) + more
    return (
        f"Rank {rank} began a forward while the last backward is unfinished: no gradient came for {named}. Pass "
        "find_unused_parameters=True if a step may leave parameters out, and let every output that counts take part in "
        "the loss."
    )


def unexpected(rank: int, name: str, *, frozen: bool, dropped: bool) -> str:
    """`name`: the parameter that got a gradient which its bucket has no room for."""
    if frozen:
        return f"Parameter {name!r} on rank {rank} was unfrozen after its forward; unfreeze it before, on every rank."
    if dropped:
        return f"Parameter {name!r} on rank {rank} got a gradient in a step that was to drop it; leave its layer out."
    return (
        f"Parameter {name!r} on rank {rank} got a second gradient in one synchronised backward: it is used by several "
        "backwards of one forward; sum the losses and call backward once, or run all but the last under no_sync(). "
        "With torch.utils.checkpoint, pass use_reentrant=False."
    )


def shared(rank: int, names: Sequence[str]) -> str:
    """`names`: of parameters that two wrappers would reduce in one backward."""
    named = ", ".join(map(repr, names[:NAMED_AT_MOST]))
    return (
        f"Rank {rank} ran the forward of two BucketedDataParallel that share parameters, among them {named}, before a "
        "backward: both would reduce the same gradients. Wrap both modules together, once."
    )


class StockArguments(TypedDict, total=False):
    """Arguments that torch's wrapper has and ours does not: each may have torch's default.

    `device_ids` and `output_device` may name the device that the module is on. Inputs are not moved there.
    """

    device_ids: Sequence[int | str | torch.device] | None
    output_device: int | str | torch.device | None
    dim: int
    init_sync: bool
    check_reduction: bool
    static_graph: bool
    delay_all_reduce_named_params: None
    param_to_hook_all_reduce: None
    mixed_precision: None
    device_mesh: Any
    skip_all_reduce_unused_params: bool
    bucket_cap_mb_list: Sequence[float] | None
    batched_grad_copy: bool
    forward_sync_buffers: bool | None


LEAVE_OUT: Final = "leave it out"
INSTEAD: Final[dict[str, tuple[object, str]]] = {
    "dim": (0, "inputs are not scattered here; leave it out"),
    "init_sync": (True, "every rank begins with rank 0's parameters; leave it out"),
    "check_reduction": (False, LEAVE_OUT),
    "static_graph": (False, "leave it out, and pass find_unused_parameters=True where a step leaves parameters out"),
    "delay_all_reduce_named_params": (None, "every gradient travels in a bucket; leave it out"),
    "param_to_hook_all_reduce": (None, "every gradient travels in a bucket; leave it out"),
    "mixed_precision": (None, "run the forward under torch.autocast, or convert the module before it is wrapped"),
    "device_mesh": (None, "pass process_group=device_mesh.get_group()"),
    "skip_all_reduce_unused_params": (False, "run the forward under `dropping(layers)`, which sends no bucket of them"),
    "bucket_cap_mb_list": (None, "pass bucket_caps_mb"),
    "batched_grad_copy": (False, LEAVE_OUT),
    "forward_sync_buffers": (None, "pass broadcast_buffers"),
}
"""By argument: torch's default, and what to do if another value was passed."""


def module_of(given: object) -> nn.Module:
    if not isinstance(given, nn.Module):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise DdptraceError(f"BucketedDataParallel wraps a torch.nn.Module, not {kind}: pass the model itself.")
    return given


def refuse_unlike(stock: StockArguments, module: nn.Module) -> None:
    """Refuse arguments of torch's wrapper that ask for something that this one does not do."""
    for name, value in stock.items():
        if name in ("device_ids", "output_device"):
            _refuse_elsewhere(name, value, module)
        elif name not in INSTEAD:
            raise DdptraceError(f"BucketedDataParallel has no argument {name!r}: see its docstring for those it has.")
        elif value != INSTEAD[name][0]:
            raise DdptraceError(f"BucketedDataParallel does not take {name}={value!r}: {INSTEAD[name][1]}.")


def timeout_of(given: object) -> float:
    if not isinstance(given, int | float) or not is_above_zero(given) or math.isinf(given):
        raise DdptraceError(f"timeout_s must be a finite number of seconds above zero, and {given!r} is not.")
    return given


def groups_of(asked: Groups | None) -> list[dist.ProcessGroup]:
    if not dist.is_initialized():
        raise DdptraceError("There is no process group yet: call torch.distributed.init_process_group first.")
    groups = [dist.group.WORLD] if asked is None else [asked] if isinstance(asked, dist.ProcessGroup) else list(asked)
    if not groups or not all(isinstance(group, dist.ProcessGroup) for group in groups):
        raise DdptraceError("process_group must be a group that this rank belongs to, or a sequence of such groups.")
    if len({tuple(dist.get_process_group_ranks(group)) for group in groups}) > 1:
        raise DdptraceError("Process groups to take turns must all have the same ranks.")
    return groups  # type: ignore[return-value] # WORLD is there: it is initialized


def device_of(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _refuse_elsewhere(name: str, value: object, module: nn.Module) -> None:
    """Refuse a device other than the module's: torch's wrapper would move inputs there, this one does not."""
    asked = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    devices = {parameter.device for parameter in module.parameters()}
    if asked and {_device(named) for named in asked} != devices:
        there = ", ".join(sorted(map(str, devices))) or "no device"
        raise DdptraceError(
            f"{name}={value!r} is not where the module is, on {there}: move the module to its device before it is "
            "wrapped, and leave the argument out."
        )


def _device(named: object) -> torch.device | None:
    """Return the device that a user named, None if it is none. A number is the accelerator of that number, as in
    torch."""
    try:
        return torch.device(named)  # type: ignore[call-overload, no-any-return] # whatever a user passed
    except (RuntimeError, TypeError):
        return None
