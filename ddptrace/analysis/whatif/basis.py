"""What an answer rests on beside the recording, and when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.whatif.again import sizes
from ddptrace.analysis.whatif.model import Model
from ddptrace.analysis.whatif.plan import Buckets
from ddptrace.analysis.whatif.tables import Contention, Setting
from ddptrace.analysis.wording import amount, percent
from ddptrace.errors import printable

NAME_MAX: Final = 60
FAR: Final = 2.0
"""So many times as large or as small as anything sent: the cost is extrapolated."""
VAGUE_RATIO: Final = 0.2
"""From such an interval of the slowdown on, an answer rests on it."""


def refusal_of(setting: Setting, model: Model) -> str | None:
    """Why nothing can be said."""
    return next(_refusals(setting, model), None)


def _refusals(setting: Setting, model: Model) -> Iterator[str]:
    if model.hook is not None and setting.hook is not None:
        hook = printable(model.hook[:NAME_MAX])
        yield f"the run has the communication hook {hook} already, and its steps without one are not in it"
    if setting.hook is not None and model.wire_ratio < 1:
        yield "the run sends fewer bytes than its gradients have already"
    if setting.ranks is not None and model.world_size < 2:
        yield "one rank communicates with nobody, so the run holds no cost of a collective"
    if setting.evened is not None and setting.evened not in model.ranks:
        yield f"there is no rank {setting.evened} in the run"
    elif setting.evened is not None and len(model.ranks) < 2:
        yield "there is no other rank"


def basis_of(setting: Setting, buckets: Buckets, model: Model, contention: Contention) -> tuple[str, ...]:
    """Sentences, the gravest first."""
    return tuple(_basis(setting, buckets, model, contention))


def _basis(setting: Setting, buckets: Buckets, model: Model, contention: Contention) -> Iterator[str]:
    if contention.high_ratio - contention.low_ratio >= VAGUE_RATIO:
        yield (
            f"How much communication slows compute is not known ({contention.why}): anything up to"
            f" {percent(contention.high_ratio)} is in the intervals. Steps with no_sync(), or a run on processors"
            " that have nothing else to do, would tell."
        )
    if setting != Setting() and model.crosses_hosts is False:
        yield (
            "All ranks ran on one machine. Where it has no processors to spare, communication slows compute and compute"
            " slows communication, which is told too well by up to 15 %: try before you rely on it."
        )
    if setting != Setting() and not setting.free_network:
        yield from _extrapolated(buckets, model)
    if setting.ranks == 1:
        yield "One rank communicates with nobody: sending takes no time."
    elif setting.ranks is not None:
        yield (
            f"More ranks: a ring of {setting.ranks} over links like those of the {model.world_size} recorded ones,"
            " which nobody else uses; no rank is slower than the recorded ones."
        )
    if setting.hook == "fp16":
        yield "fp16: a cast of all gradients is taken to cost what the update costs, between nothing and twice that."
    if setting.accumulate is not None:
        yield "Accumulation: what fewer updates do to the training is not told."
    if setting.perfect_overlap:
        yield "Perfect overlap: what the wire takes beyond backward still shows."
    if setting.groups > 1:
        yield "Groups in turn: stock DDP has no such thing, BucketedDataParallel takes process_groups."


def _extrapolated(buckets: Buckets, model: Model) -> Iterator[str]:
    asked = sizes(model, buckets)
    least, most = model.fit.least_nbytes, model.fit.most_nbytes
    if asked.min() * FAR < least or asked.max() > FAR * most:
        yield f"The run sent {_range(least, most)} at once: what far smaller or larger buckets cost is extrapolated."


def _range(least: int, most: int) -> str:
    return " to ".join(dict.fromkeys((amount(least), amount(most))))
