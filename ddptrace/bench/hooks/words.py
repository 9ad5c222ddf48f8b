"""What is to be said of hooks: bytes saved, time won or lost, and the error that was paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddptrace.bench.cells import doubt, ratio_interval
from ddptrace.bench.statistics import Spread
from ddptrace.render.words import counted, millis, percent, size


@dataclass(frozen=True, slots=True)
class Row:
    """A hook as it was measured; only `name` and `note` where it was refused. `ratio`: of step times, to `beside`, no
    hook in the same buckets. `sent`: see `Sent`. `truth`: of a traced run. `error`: of the mean gradient, relative."""

    name: str
    note: str
    time: Spread | None = None
    ratio: Spread | None = None
    beside: str = "none"
    sent: Mapping[str, Any] | None = None
    truth: Mapping[str, Any] | None = None
    error: float | None = None

    @property
    def nbytes(self) -> int | None:
        """That a rank sends in a step."""
        found = (self.sent or {}).get("nbytes")
        return None if found is None else round(found)

    @property
    def interval(self) -> str:
        return "" if self.ratio is None else ratio_interval(self.ratio, 2)


def words(rows: Sequence[Row], ranks: int, coarse_ratio: float) -> list[str]:
    """`rows`: no hook first. `coarse_ratio`: of gradients that fp16 holds with fewer digits than it has, or none."""
    none, others = rows[0], [row for row in rows[1:] if row.time is not None]
    wait = millis((none.truth or {}).get("exposed_ns"))
    step = millis(none.time.median if none.time else None)
    told = [
        f"With {counted(ranks, 'rank')} and no hook a step takes {step} ms, and {wait} ms of a traced one are exposed "
        f"communication; each rank sends {size(none.nbytes)}."
    ]
    told += [_of(row, none) for row in others]
    if any(row.name == "fp16" for row in others):
        told.append(
            f"{percent(coarse_ratio)} of the mean gradient's elements are below 6.1e-5, where fp16 has ever fewer "
            "digits and below 6.0e-8 none: scaling the loss spares its error, and bf16 has no such bound."
        )
    return told + [f"{row.name} was not measured: {row.note}" + _stop(row.note) for row in rows if row.time is None]


def _of(row: Row, none: Row) -> str:
    if row.ratio is None or row.error is None:
        return ""
    verdict = doubt(row.ratio) or ("shorter" if row.ratio.high < 1 else "longer")
    bucket = f" ({row.note})" if row.note else ""
    beside = "" if row.beside == none.name else " as without a hook, also in one bucket"
    return (
        f"{row.name}{bucket}: {_fewer(row.nbytes, none.nbytes)}, a step {row.ratio.median:.2f} times as long{beside} "
        f"({row.interval}: {verdict}), and a mean gradient that is off by {row.error:.1e} of its length."
    )


def _fewer(mine: int | None, all_of_it: int | None) -> str:
    if not mine or not all_of_it:
        return "the bytes are not known"
    share = mine / all_of_it
    return f"{size(mine)} a step, " + ("as many" if 0.99 < share < 1.01 else f"{share:.3g} times as many")


def _stop(text: str) -> str:
    return "" if text.endswith(".") else "."
