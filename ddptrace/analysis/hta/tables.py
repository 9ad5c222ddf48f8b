"""What HTA's analyses answer, from pandas to plain rows. Its names and units are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class HtaTable:
    """What one of HTA's analyses answered, its names and units kept. `why_not` says why it has no rows."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    why_not: str | None = None


def stragglers(ranks: list[int]) -> Any:
    import pandas as pd

    return pd.DataFrame({"rank": ranks})


def launches(by_rank: Mapping[int, Any]) -> Any:
    """One row per rank instead of one per kernel."""
    import pandas as pd

    rows = [{"rank": rank, "kernels": len(frame), **_medians(frame)} for rank, frame in by_rank.items()]
    return pd.DataFrame(rows)


def _medians(frame: Any) -> dict[str, float]:
    return {f"{name} median (us)": frame[name].median() for name in ("cpu_duration", "gpu_duration", "launch_delay")}


def table_of(name: str, frame: Any) -> HtaTable:
    """A DataFrame with its labels as columns."""
    if frame is None or frame.empty:
        return HtaTable(name, (), (), "HTA finds nothing of it in these files")
    if any(frame.index.names):
        frame = frame.reset_index()
    columns = (" ".join(filter(None, one)) if isinstance(one, tuple) else str(one) for one in frame.columns)
    return HtaTable(name, tuple(columns), tuple(tuple(map(cell, row)) for row in frame.itertuples(index=False)))


def cell(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def sentence(error: Exception) -> str:
    """What HTA raised, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
