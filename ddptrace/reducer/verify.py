"""Are all ranks about to train the same model? Compared before anything is sent: different shapes hang or corrupt.

Rank 0 leaves its lines in the store, one for each setting and tensor; every rank leaves a verdict on how its own lines
differ. All ranks read all verdicts, so all stop with the same message.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import cast

from torch import Tensor, nn

from ddptrace.errors import DdptraceError
from ddptrace.reducer.peers import Peers

NOTHING = "nothing"


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
