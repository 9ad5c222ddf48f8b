"""The best way to gather, keep and divide FSDP units among those that are tried, and the calls of torch that set it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from ddptrace.analysis.summary import WORTH_RATIO
from ddptrace.analysis.units.costs import bytes_by_child
from ddptrace.analysis.units.forecast import UnitPredictor
from ddptrace.analysis.whatif.tables import Prediction, Setting
from ddptrace.load.tables import Unit

SIZES: Final = (1.0, 0.5, 2.0, 4.0)
AS_GOOD: Final = 1.01
"""Ways that take at most so many times as long as the best are as good: of them, the one with least memory is taken."""


def best_ways(predictor: UnitPredictor, words: str = "the best way found") -> Prediction | None:
    """Return the best way found; None where none surely wins enough of the step. Units are divided otherwise only where
    that surely wins, and enough by itself."""
    tried = [predictor.predict(words, setting) for setting in _tried(predictor)]
    known = [one for one in tried if one.refusal is None and (one.setting.unit_size == 1 or _surely_wins(one))]
    as_divided = [one for one in known if one.setting.unit_size == 1]
    if min(map(_step, known)) > (1 - WORTH_RATIO) * min(map(_step, as_divided)):
        known = as_divided
    least = min(map(_step, known))
    best = min((one for one in known if _step(one) <= AS_GOOD * least), key=_peak)
    return best if (best.gain_ratio or 0.0) >= WORTH_RATIO and _surely_wins(best) else None


def _tried(predictor: UnitPredictor) -> Iterator[Setting]:
    for ahead, size, reshards in product(predictor.depths, SIZES, (None, False)):
        yield replace(predictor.prefetches(ahead), unit_size=size, reshard_after_forward=reshards)


def _surely_wins(one: Prediction) -> bool:
    return (one.gain_low_ratio or 0.0) > 0


def _step(one: Prediction) -> int:
    return one.step_ns or 0


def _peak(one: Prediction) -> int:
    return one.peak_nbytes or 0


def calls_of(setting: Setting, units: Sequence[Unit]) -> tuple[str, ...]:
    """Return lines of Python that set it for `model`. `units`: in the order of forward."""
    return tuple(
        _calls(setting, [unit for unit in units if unit.is_root], [unit for unit in units if not unit.is_root])
    )


def _calls(setting: Setting, roots: Sequence[Unit], units: Sequence[Unit]) -> Iterator[str]:
    parts = list(_modules(setting.unit_size, units))
    if setting.unit_size != 1 or setting.reshard_after_forward is not None:
        kept = (
            "" if setting.reshard_after_forward is None else f", reshard_after_forward={setting.reshard_after_forward}"
        )
        yield from (f"fully_shard({_module(part)}{kept})" for part in parts)
        yield "fully_shard(model)"
    if setting.unshard_async_op:
        yield "model._set_unshard_async_op(True)"
    if setting.forward_prefetch is None and setting.backward_prefetch is None:
        return
    names = ", ".join(f'"{part[0]}"' for part in parts)
    yield f"units = [{'model, ' if roots else ''}*map(model.get_submodule, [{names}])]"
    yield f"backward = {'[units[0], *reversed(units[1:])]' if roots else 'units[::-1]'}"
    for phase, order, ahead in (
        ("forward", "units", setting.forward_prefetch),
        ("backward", "backward", setting.backward_prefetch),
    ):
        yield f"for at, unit in enumerate({order}):"
        yield f"    unit.set_modules_to_{phase}_prefetch({_list(order, ahead or 0, phase)})"


def _list(order: str, ahead: int, phase: str) -> str:
    """An empty list means one unit ahead in backward; a unit that is there already is not gathered."""
    listed = f"{order}[at + 1 : at + {ahead + 1}]"
    return f"{listed} or [unit]" if phase == "backward" else listed


def _modules(size: float, units: Sequence[Unit]) -> Iterator[tuple[str, ...]]:
    """Yield the modules of each unit."""
    if size < 1:
        for unit in units:
            children = list(bytes_by_child(unit))
            step = max(round(len(children) * size), 1)
            yield from (tuple(children[at : at + step]) for at in range(0, len(children), step))
        return
    count = round(size)
    for at in range(0, len(units), count):
        yield tuple(name for unit in units[at : at + count] for name in unit.module.split(", "))


def _module(names: Sequence[str]) -> str:
    """As in `model.get_submodule("blocks.0")`, or a list of these."""
    got = [f'model.get_submodule("{name}")' for name in names]
    return got[0] if len(got) == 1 else f"[{', '.join(got)}]"
