"""Are all ranks about to train the same model? Compared before anything is sent, since unlike shapes hang or corrupt.

Rank 0 leaves in the store what it has, line by line; every rank leaves its verdict on how its own differs. All read all
verdicts, so all stop with the same sentence.
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
    """One line for each setting, then one for each tensor."""
    said = [f"the setting {name}={value!r}" for name, value in settings.items()]
    return said + [_line(name, tensor) for name, tensor in named]


def verify(peers: Peers, occasion: str, problem: str, lines: list[str], *, before: str = "") -> None:
    """Raises DdptraceError, the same on every rank, when a rank has a problem of its own or other lines than rank 0.

    `occasion`: what is compared, and a key of its own. `problem`: what this rank alone knows to be wrong, or "".
    `before`: the occasion before this one, whose traces leave the store.
    """
    shown = f"{occasion}: rank 0's lines"
    stale = [shown] if peers.rank == 0 else []  # who comes to the verdicts has read them
    stale += [peers.own_key(f"{before}: verdicts")] if before else []
    try:
        first = cast("list[str]", peers.gather_from_first(shown, lines))
        own = (problem and f"Rank {peers.me}: {problem}") or difference(peers.me, lines, first, peers.ranks[0])
        wrong = [str(one) for one in peers.gather(f"{occasion}: verdicts", own, forget=stale) if one]
        if wrong:
            raise DdptraceError(f"{wrong[0]} (seen at {occasion}, by {len(wrong)} of {peers.size} ranks)")
    except DdptraceError:
        peers.part()
        raise


def difference(rank: int, mine: list[str], first: list[str], first_rank: int = 0) -> str:
    """A sentence on the first line that is not as the first rank's, "" where there is none."""
    for own, other in zip_longest(mine, first, fillvalue=NOTHING):
        if own != other:
            return (
                f"Rank {rank} has {own} where rank {first_rank} has {other}: build the same model, in the same order "
                "and with the same settings, on every rank."
            )
    return ""


def local_problem(module: nn.Module, parameters: Iterable[Tensor]) -> str:
    """What no bucket can hold, as a sentence; "" where all is well."""
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
    if inner:  # by what such wrappers have in common, torch's and ours
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
