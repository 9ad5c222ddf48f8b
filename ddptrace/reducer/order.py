"""The order in which gradients become ready: traced in every backward, and when it is worth a new plan."""

from __future__ import annotations

PATIENCE = 3
"""Backwards in a row with the same other order before a new plan is wished for: one odd batch is not a drift."""


class ReadyOrder:
    """`close` each backward with its order. `ready`: the order of the last one, None before the first."""

    __slots__ = ("_planned", "_streak", "ready")

    def __init__(self) -> None:
        self.ready: list[int] | None = None
        self._planned: list[int] | None = None
        self._streak = 0

    def close(self, ready: list[int]) -> None:
        """A backward that brought every gradient is over; it brought them in this order."""
        if ready == self._planned:
            self._streak = 0
        else:
            self._streak = self._streak + 1 if ready == self.ready else 1
        self.ready = ready

    def plan_made(self, order: list[int]) -> None:
        """The buckets now follow this order."""
        self._planned, self._streak = order, 0

    @property
    def is_first(self) -> bool:
        """A full order is known, and the buckets still follow the guess that backward goes from last to first."""
        return self._planned is None and self.ready is not None

    @property
    def has_drifted(self) -> bool:
        return self._planned is not None and self._streak >= PATIENCE
