"""Messages for misuse: gradients too few or too many, models and hooks that differ, ranks that are gone."""

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

STORE_IS_GONE = "the process that holds the store is gone (a rank may have ended: see its output)."
STORE_IS_SILENT = "the process that holds the store does not answer: it may be stopped, or be cut off."


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
        "a module before it is wrapped, and wrap it anew where it changes later."
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
