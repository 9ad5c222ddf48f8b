"""The reducer: counts gradients into buckets and sends each bucket while backward still computes the next.

One backward, the same on all ranks (the drawing in the room's `__init__` shows the times):

    register_grad_ready(i)    gradient i goes into its bucket; was it the bucket's last one, and the bucket's turn?
      start_grad_sync         then send it, and full buckets behind it. Always in the order of indices, since a
                              collective meets the one that other ranks issue in the same place
    finish_grad_sync()        autograd calls it when backward is over: wait for each, hand the means to `parameter.grad`
    reset()                   the next synchronised forward starts the count anew
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn import Parameter

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import Bucket, Divisor
from ddptrace.reducer.gradients import Bitmap, GradientHooks, clash, parameters_reached, sharing_with
from ddptrace.reducer.layout import Layout
from ddptrace.reducer.misuse import GRAPH_OF_GRADIENTS, unexpected, unfinished
from ddptrace.reducer.observer import Voice
from ddptrace.reducer.peers import Peers, sentence_of
from ddptrace.reducer.same_training import BackwardAgreement, Pulse
from ddptrace.reducer.sender import CommHook, Sender


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a reducer, explained at the wrapper's arguments of the same names."""

    caps_nbytes: tuple[int, ...]
    find_unused_parameters: bool
    gradient_as_bucket_view: bool


class Reducer:
    """Reduces the gradients of one module over the ranks."""

    def __init__(
        self,
        named: dict[str, Parameter],
        groups: Sequence[dist.ProcessGroup],
        peers: Peers,
        options: Options,
        voice: Voice,
    ) -> None:
        self.names, self.parameters = tuple(named), tuple(named.values())
        self._peers, self._options, self._voice = peers, options, voice
        self._device = self.parameters[0].device
        self.layout = Layout(named, options.caps_nbytes, peers, voice, may_rebuild=not options.find_unused_parameters)
        self.sender = Sender(groups, peers, voice)
        self._alike = BackwardAgreement(peers)
        self._pulse = Pulse(peers, self._alike, self._device)
        self._bitmap = Bitmap(peers, self._device)
        self._lock = threading.Lock()  # with parameters on two devices, autograd calls from two threads
        self._hooks = GradientHooks(self)
        self.dropped: frozenset[int] = frozenset()  # parameters of layers that the next forward leaves out
        self._used: set[int] = set()  # parameters with a gradient since the last synchronisation, also from no_sync()
        self._backward = -1  # ordinal of the synchronised backward
        self._replan_agreed = False
        self._broken = ""
        self._ranks = Divisor.of(peers.size)
        self._divisor: Divisor | None = None  # the ranks, unless a hook divides
        self._unused: set[int] = set()  # not reached from the outputs that the next backward starts from
        self._dropped: frozenset[int] = frozenset()
        self.expects = False
        self.rivals = sharing_with(self)
        self.reset()
        self._hooks.watch(self.layout.members)

    # Before and after forward ----------------------------------------------------------------------------------------

    def before_forward(self, syncs: bool) -> None:
        """Check that the last backward has ended, and that nothing has changed since; collective once."""
        if self._broken:
            raise DdptraceError(f"This reducer cannot go on, for ranks may be in different steps now: {self._broken}")
        if self._has_begun:
            missing = [self.names[index] for index in self.layout.members if index not in self._ready]
            raise DdptraceError(unfinished(self._peers.me, missing))
        self.layout.refuse_changes()
        if syncs and not self.sender.agreement.is_settled:
            self.sender.agreement.settle()

    def rebuild(self) -> None:
        """Make new buckets if all ranks know that it is time. Collective then."""
        if self.layout.rebuild(agreed=self._replan_agreed):
            self._replan_agreed = False

    def follow_members(self) -> None:
        """Make buckets for the parameters that now require a gradient. Call it on every rank."""
        self.layout.guess()
        self._hooks.watch(self.layout.members)

    def expect(self, outputs: object) -> None:
        """The forward is over; synchronise the backward through `outputs`."""
        sentence = clash(self, self._peers.me)
        if sentence:
            self.give_up(sentence)
            raise DdptraceError(sentence)
        unused, dropped = self._unused_in(outputs), self.dropped
        if self.expects:  # there was no backward yet: the next one goes through the earlier forward too
            unused, dropped = unused & self._unused, dropped & self._dropped
        self.reset()
        self.expects, self._unused, self._dropped = True, unused, dropped

    def reset(self) -> None:
        """Start counting anew."""
        self._ready: dict[int, None] = {}  # in the order in which they came
        self._next = self._last = 0  # indices of buckets
        self._has_begun = False
        self._left_out: frozenset[int] = frozenset()
        for bucket in self.layout.buckets:
            bucket.reset()

    def register_hook(self, state: object, hook: CommHook) -> None:
        """Raises DdptraceError for a second hook, and after the first synchronised forward also if ranks differ."""
        self.sender.register(state, hook)
        try:
            self.sender.agreement.registered(state, hook)
        except DdptraceError as error:
            self.give_up(str(error))
            raise

    # In backward -----------------------------------------------------------------------------------------------------

    def register_grad_ready(self, index: int) -> None:
        """The gradient of a parameter is accumulated. Called by autograd, on its thread."""
        tell = self._voice.tell
        if tell and self.expects and not self._has_begun:
            tell("backward_begins", self._backward + 1)
        if tell:
            tell("gradient_ready", index)
        self._used.add(index)
        if not self.expects:
            return
        with self._lock:
            try:
                if not self._has_begun:
                    self._begin()
                if self._mark_ready(index).pending == 0:
                    self._send_ready()
            except Exception as error:
                self.give_up(sentence_of(error))
                raise

    def _begin(self) -> None:
        """At the first gradient of a backward: compare with the other ranks, and count gradients that will not come."""
        self._backward += 1
        self._has_begun = True
        if torch.is_grad_enabled():
            raise DdptraceError(GRAPH_OF_GRADIENTS)
        self._divisor = None if self.sender.has_hook else self._ranks
        self._left_out = self._dropped - self._used
        self._alike.agree(self._backward, self._left_out)
        for bucket in self.layout.buckets:
            bucket.is_skipped = bool(self._left_out) and self._left_out.issuperset(bucket.indices)
            if not bucket.is_skipped:
                self._last = bucket.index
        for index in sorted(self._unused | self._dropped):  # some dropped parameters may have gradients from no_sync()
            self._mark_ready(index)
        self._send_ready()  # buckets that hold nothing else
        if self._options.find_unused_parameters:
            Variable._execution_engine.queue_callback(self._settle_unused)

    def _unused_in(self, outputs: object) -> set[int]:
        """Return the parameters that get no gradient from a backward from `outputs`, if the user asked for that."""
        if not self._options.find_unused_parameters:
            return set()
        reached = parameters_reached(outputs)
        return {index for index in self.layout.members if id(self.parameters[index]) not in reached}

    def _mark_ready(self, index: int) -> Bucket:
        """Count a parameter's gradient, or its absence, into its bucket."""
        bucket = self.layout.bucket_of[index]
        if index in self._ready or bucket is None:
            dropped = index in self._dropped
            raise DdptraceError(unexpected(self._peers.me, self.names[index], frozen=bucket is None, dropped=dropped))
        self._ready[index] = None
        if not bucket.is_skipped:
            try:
                bucket.fill(index, self._divisor, self._options.gradient_as_bucket_view)
            except RuntimeError:  # torch refuses a gradient of another dtype, device or shape
                self.layout.refuse_any_change()
                raise
        bucket.pending -= 1
        return bucket

    def _send_ready(self) -> None:
        """Send every full bucket whose turn it is; after the last one, have autograd call us when backward is over."""
        buckets = self.layout.buckets
        while self._next < len(buckets) and buckets[self._next].pending == 0:
            self.start_grad_sync(buckets[self._next])
            self._next += 1
        if self._next == len(buckets):
            if self._options.find_unused_parameters:
                self._bitmap.send(index in self._used for index in range(len(self.parameters)))
            wants_replan = not self.sender.has_hook and self.layout.wants_replan
            self._pulse.send(self._backward, wants_replan=wants_replan, has_hook=self.sender.has_hook)
            Variable._execution_engine.queue_callback(self.finish_grad_sync)

    def start_grad_sync(self, bucket: Bucket) -> None:
        """Send one bucket and return at once. A bucket whose layers are dropped on every rank is not sent."""
        if not bucket.is_skipped:
            self.sender.send(bucket, is_last=bucket.index == self._last)

    # At the end of backward ------------------------------------------------------------------------------------------

    def finish_grad_sync(self) -> None:
        """Wait for all buckets, put the means into `parameter.grad`. On a GPU the current stream waits instead."""
        self.expects = False
        try:
            self._collect()
        except Exception as error:
            self.give_up(sentence_of(error))
            raise
        self._has_begun = False
        self._used.clear()
        if not self._dropped:  # a backward that dropped layers says nothing about the order
            self.layout.order.close(list(self._ready))
        if self._voice.tell:
            self._voice.tell("backward_ends", self._backward)

    def _collect(self) -> None:
        untouched: frozenset[int] | None = None
        for bucket in self.layout.buckets:
            if bucket.is_skipped:
                continue
            self.sender.receive(bucket)
            if untouched is None:
                untouched = self._left_out | self._bitmap.unused_by_all(
                    known=self._used.issuperset(self.layout.members)
                )
            bucket.hand_back(untouched, as_view=self._options.gradient_as_bucket_view)
        self._replan_agreed |= self._pulse.read()

    def _settle_unused(self) -> None:
        """Backward is over: a parameter without a gradient, though the graph leads to it, is unused on this rank."""
        if self.expects and self._next < len(self.layout.buckets):
            try:
                for index in sorted(set(self.layout.members) - self._ready.keys()):
                    self._mark_ready(index)
                self._send_ready()
            except Exception as error:
                self.give_up(sentence_of(error))
                raise

    # Besides ---------------------------------------------------------------------------------------------------------

    def give_up(self, sentence: str) -> None:
        """Tell the peers, and refuse every later forward."""
        self.expects = self._has_begun = False
        if not self._broken:
            self._broken = sentence
            self._peers.say(sentence, since=self._peers.forward - 1)
            self._peers.part()
