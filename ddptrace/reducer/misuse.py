"""What a rank is told that brought too few gradients, or one too many."""

from __future__ import annotations

from collections.abc import Sequence

NAMED_AT_MOST = 5
GRAPH_OF_GRADIENTS = (
    "A backward with create_graph=True would give gradients a graph of their own, which no flat bucket holds: take "
    "second derivatives by torch.autograd.grad, or under no_sync()."
)

DROPS_DIFFER = (
    "Ranks do not drop the same layers in this step; decide with `LayerDrop`, whose choices depend only on a shared "
    "seed, the step and the layer."
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
        "Under torch.utils.checkpoint it may be that too: take use_reentrant=False."
    )


def shared(rank: int, names: Sequence[str]) -> str:
    """`names`: of parameters that two wrappers would reduce in one backward."""
    named = ", ".join(map(repr, names[:NAMED_AT_MOST]))
    return (
        f"Rank {rank} ran the forward of two BucketedDataParallel that share parameters, among them {named}, before a "
        "backward: both would reduce the same gradients. Wrap both modules together, once."
    )
