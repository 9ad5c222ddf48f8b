"""The current buckets: at first a guess, then by the order in which gradients really became ready.

    layout 0     guess: from the last parameter to the first
    layout 1     at the second forward: rank 0's order of the first full backward, sent to every rank
    layout 2..   when rank 0's order has differed for some backwards, or when parameters were frozen or unfrozen

Every rank must change at the same forward. The first rebuild follows from counting; the pulse agrees on a later one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import Bucket, plan_buckets
from ddptrace.reducer.misuse import changed
from ddptrace.reducer.observer import LayoutMade, Voice
from ddptrace.reducer.peers import Peers
from ddptrace.reducer.same_training import order_of_first


class Layout:
    """The buckets of a reducer. `bucket_of[index]` is the parameter's bucket, None while it is frozen."""

    def __init__(
        self,
        named: dict[str, Parameter],
        caps_nbytes: Sequence[int],
        peers: Peers,
        voice: Voice,
        *,
        may_rebuild: bool,
    ) -> None:
        """`may_rebuild`: False if ranks may use different parameters, so that no order holds for all of them."""
        self._names, self._parameters = tuple(named), tuple(named.values())
        self._caps, self._peers, self._voice = tuple(caps_nbytes), peers, voice
        self._may_rebuild = may_rebuild
        self.number = self._turn = -1
        self.guess()

    @property
    def members(self) -> list[int]:
        """The parameters that are not frozen, ascending."""
        return [index for index, trains in enumerate(self._trains) if trains]

    def made(self) -> LayoutMade:
        """Return the layout for observers."""
        return LayoutMade(self.number, tuple(bucket.indices for bucket in self.buckets))

    def has_other_members(self) -> bool:
        """Whether parameters were frozen or unfrozen since the buckets were made."""
        return [parameter.requires_grad for parameter in self._parameters] != self._trains

    def refuse_changes(self) -> None:
        """Raise DdptraceError for a parameter whose dtype, device or shape has changed since its bucket was made.

        Each call looks at one parameter of each bucket, in turn. That finds a conversion of the whole module at once;
        one of a single layer is found when torch refuses its gradient. A conversion there and back costs new views.
        """
        self._turn += 1
        for bucket in self.buckets:
            at = self._turn % len(bucket.parameters)
            parameter, address = bucket.parameters[at], bucket.views[at].data_ptr()
            if (parameter.dtype, parameter.device, parameter.shape, address) != bucket.kinds[at]:
                self.refuse_any_change()
                return

    def refuse_any_change(self) -> None:
        """Do the same for all parameters."""
        for bucket in self.buckets:
            change = bucket.change()
            if change is not None:
                name = self._names[change.index]
                raise DdptraceError(changed(self._peers.me, name, change.now, change.before))
            bucket.view_anew()  # a conversion gives other memory to parameters, and to views that are gradients

    def guess(self) -> None:
        """Make buckets for the parameters that now require a gradient, in reverse order."""
        self._nbytes = [parameter.numel() * parameter.element_size() for parameter in self._parameters]
        self._kinds = [(parameter.dtype, parameter.device) for parameter in self._parameters]
        self._trains = [parameter.requires_grad for parameter in self._parameters]
        members = self.members
        self.order = ReadyOrder()
        self._make(self._plan(members[::-1]))

    @property
    def wants_replan(self) -> bool:
        """Whether, on rank 0, gradients keep coming in another order that makes other buckets."""
        if not (self._may_rebuild and self._peers.rank == 0 and self.order.has_drifted and self.order.ready):
            return False
        if [set(members) for members in self._plan(self.order.ready)] != [
            set(bucket.indices) for bucket in self.buckets
        ]:
            return True
        self.order.plan_made(self.order.ready)  # another order inside the same buckets
        return False

    def rebuild(self, *, agreed: bool) -> bool:
        """Follow rank 0's order if it is time: after the first full backward, or if all have `agreed`. Collective
        then."""
        if not self._may_rebuild or self.order.ready is None or not (agreed or self.order.is_first):
            return False
        self.refuse_any_change()
        order = order_of_first(self._peers, self.order.ready, self._kinds[0][1])
        self.order.plan_made(order)
        self._make(self._plan(order))
        return True

    def _plan(self, order: Sequence[int]) -> list[list[int]]:
        return plan_buckets(order, self._nbytes, self._kinds, self._caps)

    def _make(self, plan: list[list[int]]) -> None:
        self.number += 1
        self.buckets = [Bucket(i, members, [self._parameters[at] for at in members]) for i, members in enumerate(plan)]
        self.bucket_of: list[Bucket | None] = [None] * len(self._parameters)
        for bucket in self.buckets:
            for index in bucket.indices:
                self.bucket_of[index] = bucket
        if self._voice.tell:
            self._voice.tell("layout_made", self.made())


PATIENCE = 3
"""Backwards in a row with the same new order before a new plan is wanted: one odd batch is not a drift."""


class ReadyOrder:
    """The order in which gradients become ready, and when it deserves a new plan. `close` each backward with its order.
    `ready`: the order of the last backward, None before the first."""

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
