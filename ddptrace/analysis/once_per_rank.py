"""Rows of a rank that several tables are made of are worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from ddptrace.analysis.rank_view import RankView

Rows = TypeVar("Rows")


def once_per_rank(make: Callable[[RankView], Rows]) -> Callable[[RankView], Rows]:
    """Decorate a function so that it keeps what it made of a view for as long as that lives."""
    made: WeakKeyDictionary[RankView, Rows] = WeakKeyDictionary()

    @wraps(make)
    def kept(view: RankView) -> Rows:
        if view not in made:
            made[view] = make(view)
        return made[view]

    return kept
