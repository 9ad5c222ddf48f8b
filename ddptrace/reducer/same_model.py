"""Do all ranks train the same model? Compared before anything is sent: different shapes hang or corrupt.

Rank 0 leaves its lines in the store, one for each setting and tensor; every rank leaves a verdict on how its own lines
differ. All ranks read all verdicts, so all stop with the same message.

Then rank 0 sends its values to every rank: parameters once, buffers before each forward that follows a synchronised
one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ddptrace.errors import DdptraceError
from ddptrace.reducer.peers import Peers

NOTHING = "nothing"

CHUNK_NBYTES = 250 * 1024 * 1024
"""Bytes of one message, as in torch: flattening takes as much memory on top."""


Message = tuple[list[Tensor], Tensor]
"""Tensors of one kind, and all of them in one flat tensor."""


def described(settings: dict[str, object], named: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return one line for each setting, then one for each tensor."""
    lines = [f"the setting {name}={value!r}" for name, value in settings.items()]
    return lines + [_line(name, tensor) for name, tensor in named]


def verify(peers: Peers, occasion: str, problem: str, lines: list[str], *, before: str = "") -> None:
    """Raise DdptraceError, the same on every rank, if some rank has a problem or other lines than rank 0.

    `occasion`: what is compared, unique among all comparisons. `problem`: what only this rank knows to be wrong, or "".
    `before`: the previous occasion, whose keys are removed from the store.
    """
    shown = f"{occasion}: rank 0's lines"
    stale = [shown] if peers.rank == 0 else []  # a rank that comes to the verdicts has read them
    stale += [peers.own_key(f"{before}: verdicts")] if before else []
    try:
        first = cast("list[str]", peers.gather_from_first(shown, lines))
        own = (problem and f"Rank {peers.me}: {problem}") or difference(peers.me, lines, first, peers.ranks[0])
        wrong = [str(verdict) for verdict in peers.gather(f"{occasion}: verdicts", own, forget=stale) if verdict]
        if wrong:
            raise DdptraceError(f"{wrong[0]} (seen at {occasion}, by {len(wrong)} of {peers.size} ranks)")
    except DdptraceError:
        peers.part()
        raise


def difference(rank: int, mine: list[str], first: list[str], first_rank: int = 0) -> str:
    """Return a message about the first line that differs from the first rank's, "" if there is none."""
    for own, other in zip_longest(mine, first, fillvalue=NOTHING):
        if own != other:
            return (
                f"Rank {rank} has {own} where rank {first_rank} has {other}: build the same model, in the same order "
                "and with the same settings, on every rank."
            )
    return ""


def local_problem(module: nn.Module, parameters: Iterable[Tensor]) -> str:
    """Return a message about what no bucket can hold; "" if all is well."""
    parameters = list(parameters)
    if not any(parameter.requires_grad for parameter in parameters):
        return "The module has no parameter that requires a gradient: there is nothing to reduce; do not wrap it."
    if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in parameters):
        return "The module has uninitialized (lazy) parameters: run one forward before wrapping it."
    if any(
        getattr(part, "sparse", False) for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)
    ):
        return "The module has an embedding with sparse=True, whose gradients no flat bucket holds: use sparse=False."
    inner = [name for name, part in module.named_modules() if hasattr(part, "require_backward_grad_sync")]
    if inner:  # an attribute that torch's wrapper and ours have
        return f"The module is wrapped already, at {inner[0] or 'its top'!r}: gradients are reduced once; wrap it once."
    return ""


def _line(name: str, tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer):
        return f"{name!r} of {kind}, uninitialized"
    frozen = "" if tensor.requires_grad or not isinstance(tensor, nn.Parameter) else ", frozen"
    return (
        f"{name!r} of {kind}, shape {tuple(tensor.shape)}, strides {tensor.stride()}, on {tensor.device.type}{frozen}"
    )


def messages_of(tensors: Iterable[Tensor]) -> list[Message]:
    """Flatten many tensors into few messages."""
    with torch.no_grad():
        return [_flattened(chunk) for chunk in _chunks(tensors)]


@torch.no_grad()
def take_from_first(peers: Peers, messages: Iterable[Message], what: str) -> None:
    """Overwrite the messages' tensors with rank 0's. `what`: the values, for the error message."""
    sent = [(chunk, flat, _broadcast(peers, flat)) for chunk, flat in messages]
    for chunk, flat, work in sent:
        peers.wait(work, what)
        if peers.rank != 0:
            torch._foreach_copy_(chunk, _unflatten_dense_tensors(flat, chunk))


def order_of_first(peers: Peers, order: list[int], device: torch.device) -> list[int]:
    """Return rank 0's order of parameter indices. Collective."""
    agreed = torch.tensor(order, dtype=torch.int64, device=device)
    peers.wait(_broadcast(peers, agreed), "rank 0's order of gradients")
    return [int(index) for index in agreed.tolist()]


def _chunks(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors of one kind, in their order; a chunk is full at `CHUNK_NBYTES`."""
    full: list[list[Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    nbytes: Counter[tuple[torch.dtype, torch.device]] = Counter()
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        filling[kind].append(tensor.data)  # what a forward saved of it counts as unchanged, as with torch's wrapper
        nbytes[kind] += tensor.numel() * tensor.element_size()
        if nbytes[kind] >= CHUNK_NBYTES:
            full.append(filling.pop(kind))
            nbytes[kind] = 0
    return full + list(filling.values())


def _flattened(chunk: list[Tensor]) -> Message:
    return chunk, _flatten_dense_tensors(chunk)


def _broadcast(peers: Peers, tensor: Tensor) -> dist.Work:
    work = dist.broadcast(tensor, dist.get_global_rank(peers.group, 0), group=peers.group, async_op=True)
    return cast("dist.Work", work)
