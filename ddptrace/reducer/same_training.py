"""Checks that all ranks train the same model and are in the same step, before anything is sent.

The model: different shapes hang or corrupt. Rank 0 leaves its lines in the store, one for each setting and tensor;
every rank leaves a verdict on how its own lines differ. All ranks read all verdicts, so all stop with the same message.
Then rank 0 sends its values to every rank: parameters once, buffers before each forward that follows a synchronised
one.

The step: a plain backward follows one forward and drops nothing. While all backwards of every rank are plain, all ranks
are in the same step: a rank that ran a forward without a backward, or went on after an exception, is in a backward that
is not plain. Only such a backward is compared before a bucket leaves:

    rank 0   forward | backward   | forward |         | forward | (2 forwards) asks; learns that rank 1 had 1
    rank 1   forward | backward   | forward | backward, waits for bucket 0, looks: rank 0 had 2. Nothing was mixed

A program may run several forwards before each backward. Once the ranks have agreed that they all do, `is_plain` stays
False, and from then on the pulse compares the ranks, after the buckets of each backward:

    rank 0   forward 7 | backward 7 | forward 8 | backward 8
    rank 1   forward 7 | (raised)   | forward 8 | backward 8      the pulse says 7 here and 8 there: all ranks stop

While every backward is plain, a pulse every now and then is enough: even these few bytes take about half a millisecond
of two processors' time.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.distributed_c10d import Store

from ddptrace.errors import DdptraceError
from ddptrace.reducer.misuse import DROPS_DIFFER, not_in_one_step
from ddptrace.reducer.notes import text_at
from ddptrace.reducer.peers import Peers

BACKWARD: Final = "backward"
"""Key in the store: the backward that a rank asks the others about."""
SELDOM: Final = 32
"""Backwards per pulse if they are plain, or if reading a pulse makes the host wait for a device."""
CHUNK_NBYTES: Final = 250 * 1024 * 1024
"""Bytes of one message, as in torch: flattening takes as much memory on top."""

Message = tuple[list[Tensor], Tensor]
"""Tensors of one kind, and all of them in one flat tensor."""


@dataclass(frozen=True, slots=True)
class BackwardKind:
    """What has to be the same on all ranks. `forward`: number of the last forward. `forwards`: how many since the
    previous backward. `dropped`: checksum of the parameters that are left out, 0 for none."""

    forward: int
    forwards: int
    dropped: int

    @classmethod
    def read(cls, text: str) -> BackwardKind:
        return cls(*map(int, text.split()))

    def __str__(self) -> str:
        return f"{self.forward} {self.forwards} {self.dropped}"


class BackwardAgreement:
    """`kind`: of this rank's last backward. `is_plain`: each backward so far followed exactly one forward."""

    __slots__ = ("_backward", "_forward_before", "_met", "_peers", "is_plain", "kind")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.kind, self.is_plain = BackwardKind(0, 1, 0), True
        self._backward = -1  # the backward of `kind`
        self._forward_before = 0
        self._met: list[str] = []  # the key of the last meeting
        peers.looks.append(self._difference)

    def agree(self, backward: int, left_out: Collection[int]) -> None:
        """Return once this backward is known to be the same on all ranks; at once if it is plain on this rank.

        Call it before a bucket is sent: a backend may end the process if ranks send different ones. Raises
        DdptraceError if ranks differ: here on a rank that asks; a rank that does not ask raises in its wait for a
        bucket.
        """
        forward = self._peers.forward
        forwards, self._forward_before = forward - self._forward_before, forward
        dropped = zlib.crc32(repr(sorted(left_out)).encode()) if left_out else 0
        self.kind, self._backward = BackwardKind(forward, forwards, dropped), backward
        if not self._is_asked:
            return
        self._peers.tell(BACKWARD, self._said)  # before any rank looks
        kind = f"backward/{backward}"
        said = self._peers.meet(kind, str(self.kind), "the comparison of their backwards", forget=self._met)
        sentence = next(filter(None, map(self._unlike, map(BackwardKind.read, said))), "")
        if sentence:
            raise DdptraceError(sentence)
        self._met = [self._peers.own_key(kind)]
        self.is_plain &= forwards == 1

    @property
    def _is_asked(self) -> bool:
        return bool(self.kind.dropped) or (self.is_plain and self.kind.forwards != 1)

    @property
    def _said(self) -> str:
        return f"{self._backward} {self.kind}"

    def _unlike(self, other: BackwardKind) -> str:
        if other == self.kind:
            return ""
        if other.forward == self.kind.forward:
            return DROPS_DIFFER
        first, last = sorted((other.forward, self.kind.forward))
        return not_in_one_step(first, last, self._peers.me, self.kind.forward)

    def _difference(self, store: Store) -> str:
        """Compare this backward with what another rank has left in the store, and leave this rank's own; for a rank
        that waits.

        One key for all ranks is enough: a rank that has read it and raises notifies those in the same forward.
        """
        text = text_at(store, BACKWARD)
        backward, _, said = text.partition(" ")
        sentence = self._unlike(BackwardKind.read(said)) if backward == str(self._backward) else ""
        if sentence:
            store.set(BACKWARD, self._said)
        elif self._is_asked:
            store.compare_set(BACKWARD, text, self._said)  # unless another rank has written since, and then raised
        return sentence


class Pulse:
    """A few numbers that ranks compare at the end of a backward: are they in the same step?

    `send` it after the last bucket, when the processor has nothing else to do; at the start of a backward it would
    delay the computation on every rank. `read` it once the buckets are there.
    """

    __slots__ = ("_alike", "_device", "_peers", "_sent")

    def __init__(self, peers: Peers, alike: BackwardAgreement, device: torch.device) -> None:
        self._peers, self._alike, self._device = peers, alike, device
        self._sent: tuple[dist.Work, torch.Tensor] | None = None

    def _every(self, has_hook: bool) -> int:
        """Return the backwards per pulse: 1 if ranks may be in different reducers over one group, or if a hook need not
        wait for all ranks."""
        is_sure = self._alike.is_plain and not has_hook and not self._peers.are_shared
        return SELDOM if is_sure or not self._peers.on_host else 1

    def send(self, backward: int, *, wants_replan: bool, has_hook: bool) -> None:
        if backward % self._every(has_hook):
            return
        kind, number = self._alike.kind, self._peers.number
        compared = [kind.forward, -kind.forward, kind.dropped, -kind.dropped, number, -number, int(wants_replan)]
        tensor = torch.tensor(compared, dtype=torch.int64, device=self._device)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._peers.group, async_op=True)
        self._sent = (work, tensor)

    def read(self) -> bool:
        """Return whether some rank wants a new plan. Raises DdptraceError, on every rank, if they are in different
        steps."""
        if self._sent is None:
            return False
        (work, tensor), self._sent = self._sent, None
        self._peers.wait(work, "the ranks' comparison of their steps")
        last, first, most, least, newest, oldest, wants_replan = tensor.tolist()
        if newest != -oldest:
            raise DdptraceError(
                f"Ranks run different models in this step: of those over this group, one is in number {-oldest}, "
                f"another in number {newest} and rank {self._peers.me} in number {self._peers.number}; gradients of "
                "different models were mixed. Use the models in the same order on every rank."
            )
        if last != -first:
            raise DdptraceError(not_in_one_step(-first, last, self._peers.me, self._alike.kind.forward))
        if most != -least:
            raise DdptraceError(DROPS_DIFFER)
        return bool(wants_replan)


def described(settings: dict[str, object], named: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Return one line for each setting, then one for each tensor."""
    lines = [f"the setting {name}={value!r}" for name, value in settings.items()]
    return lines + [_tensor_line(name, tensor) for name, tensor in named]


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
    for own, other in zip_longest(mine, first, fillvalue="nothing"):
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


def _tensor_line(name: str, tensor: Tensor) -> str:
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
