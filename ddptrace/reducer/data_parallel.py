"""The wrapper that a user puts around a module, in the place of torch's DistributedDataParallel.

Under torch.compile, a compiled backward is one node of the graph: all its gradients are ready at once, at its end, and
no communication hides behind it. So inside a DistributedDataParallel Dynamo splits a graph at the borders of buckets.
It finds the wrapper in a class attribute and reads only its `bucket_bytes_cap`. During our forward, our wrapper is in
that attribute.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.nn.parallel import DistributedDataParallel

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import bucket_caps
from ddptrace.reducer.misuse import Groups, StockArguments, device_of, groups_of, module_of, refuse_unlike, timeout_of
from ddptrace.reducer.observer import BucketObserver, ReducerMade, Voice
from ddptrace.reducer.peers import Peers, sentence_of
from ddptrace.reducer.reducer import Options, Reducer
from ddptrace.reducer.same_training import Message, described, local_problem, messages_of, take_from_first, verify
from ddptrace.reducer.sender import CommHook

FORWARD_RANGE = "BucketedDataParallel.forward"

SPLIT_AT_LEAST_NBYTES = 1024 * 1024
"""Dynamo splits no finer, and raises for a smaller cap."""


class BucketedDataParallel(nn.Module):
    """Train one module on several ranks: each rank gets the mean of all gradients, sent while backward computes.

        model = BucketedDataParallel(module, bucket_cap_mb=25)
        loss = model(inputs).sum()
        loss.backward()      # afterwards every gradient is the mean over the ranks

    Args:
        module: The module to train. Rank 0's parameters and buffers are sent to all ranks.
        bucket_cap_mb: Cap of all buckets but the first, in MiB.
        first_bucket_mb: Cap of the bucket that is sent first, in MiB.
        bucket_caps_mb: Instead of both, caps in MiB of the first bucket, the second, ...; the last one repeats.
        process_group: None is the default group. Of several groups with the same ranks, bucket i takes group i modulo
            their number.
        find_unused_parameters: Allow a step to leave parameters out, different ones on every rank. Buckets are then not
            rebuilt.
        broadcast_buffers: Send rank 0's buffers (as BatchNorm's) before a forward that follows a synchronised one.
        gradient_as_bucket_view: Make `parameter.grad` a view into its bucket. False: keep them apart, and copy.
        observer: A `BucketObserver` to call with what the reducer does.
        timeout_s: Longest wait for other ranks on the host, in seconds; at most five seconds later an error says why.
            The process group's own timeout bounds what a device waits for.
        **stock: Other arguments of torch's wrapper, if they have its defaults: see `StockArguments`.

    Raises:
        DdptraceError: Ranks do not have the same parameters, buffers and settings. Every rank raises it.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float = 25,
        first_bucket_mb: float = 1,
        bucket_caps_mb: Sequence[float] | None = None,
        process_group: Groups | None = None,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool | None = True,
        gradient_as_bucket_view: bool = True,
        observer: BucketObserver | None = None,
        timeout_s: float = 1800,
        **stock: Unpack[StockArguments],
    ) -> None:
        super().__init__()
        self._made_with = {
            "bucket_cap_mb": bucket_cap_mb,
            "first_bucket_mb": first_bucket_mb,
            "bucket_caps_mb": bucket_caps_mb,
            "find_unused_parameters": find_unused_parameters,
            "broadcast_buffers": broadcast_buffers,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "timeout_s": timeout_s,
        }
        refuse_unlike(stock, module_of(module))
        caps = tuple(bucket_caps(bucket_cap_mb, first_bucket_mb, bucket_caps_mb))
        groups = groups_of(process_group)
        named = dict(module.named_parameters())
        self.module = module
        self.process_group, self._groups = groups[0], tuple(group.group_name for group in groups)
        self.broadcast_buffers = broadcast_buffers is not False  # None is torch's name for its default
        self.bucket_bytes_cap = max(caps[-1], SPLIT_AT_LEAST_NBYTES)  # the name under which torch.compile looks for it
        self.require_backward_grad_sync = True
        self._require_forward_buffer_sync = True
        self._changes = 0  # of what the ranks have compared
        self._verified = ""  # the last occasion on which they did
        self._peers = Peers(groups[0], device_of(module), timeout_of(timeout_s))
        self._voice = Voice()
        self._options = Options(caps, find_unused_parameters, gradient_as_bucket_view)
        self._verify("the construction of the model", local_problem(module, named.values()))
        take_from_first(self._peers, messages_of([*named.values(), *self._buffers_to_sync()]), "rank 0's parameters")
        buffers = messages_of(self._buffers_to_sync())
        self._buffer_kinds = [(flat.numel(), flat.dtype, flat.device) for _, flat in buffers]
        self.reducer = Reducer(named, groups, self._peers, self._options, self._voice)
        if observer is not None:
            self.observe(observer)
        _alive[next(_ordinals)] = self
        self._peers.made_by_all(groups)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        syncs = self._syncs
        self._peers.forward += syncs
        try:
            self._before_forward(syncs)
        except DdptraceError as error:
            self.reducer.give_up(str(error))
            raise
        try:
            outputs = self._run(*inputs, **keywords)
        except Exception as error:
            self._peers.say(f"its forward raised {sentence_of(error)}")
            raise
        if syncs:
            self.reducer.expect(outputs)
        self._require_forward_buffer_sync = syncs
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of what runs inside on this rank. They add up; the next backward outside sends the sum."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def dropping(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Leave these modules out of a forward inside, on every rank: buckets that hold nothing else are not sent.

        See `LayerDrop` for a choice that is the same on every rank. Gradients of dropped layers stay as they are.

        Args:
            layers: Modules that the forward skips, the same on every rank.
        """
        dropped = {id(parameter) for layer in layers for parameter in layer.parameters()}
        indices = (index for index, parameter in enumerate(self.reducer.parameters) if id(parameter) in dropped)
        before, self.reducer.dropped = self.reducer.dropped, frozenset(indices)
        try:
            yield
        finally:
            self.reducer.dropped = before

    def register_comm_hook(self, state: object, hook: CommHook) -> None:
        """Let a hook communicate the buckets, as with torch's wrapper.

        Buckets are then not planned anew when the order drifts, since hooks may keep state for each bucket. Every rank
        registers the same hook at the same place: ranks compare hooks in their first synchronised forward, and where
        one is registered later, there and then.

        Args:
            state: First argument of the hook.
            hook: `hook(state, bucket)` returns a future of the reduced tensor. It divides by the number of ranks.
                `torch.distributed.algorithms.ddp_comm_hooks` holds ready ones.
        """
        self.reducer.register_hook(state, hook)

    def observe(self, observer: BucketObserver | None, *, seat: str = "program") -> None:
        """Call this observer with what the reducer does.

        Args:
            observer: Replaces the observer in the same seat; None: leave the seat empty.
            seat: Name of the seat. A tool takes a seat under its own name, so that it neither replaces the program's
                observer nor is replaced by it.
        """
        if observer is None:
            self._voice.leave(seat)
            return
        names, parameters = self.reducer.names, self.reducer.parameters
        group, ranks, module = self.process_group.group_name, self._peers.size, type(self.module).__name__
        made = ReducerMade(module, group, ranks, names, parameters, self._options.caps_nbytes)
        seated = self._voice.listen(observer, seat)
        seated.tell("reducer_made", made)
        seated.tell("layout_made", self.reducer.layout.made())

    def __getstate__(self) -> dict[str, Any]:
        """For copy.deepcopy, pickle and torch.save: the module, and how it was wrapped; no group can be kept."""
        if self.process_group != dist.group.WORLD or len(self._groups) > 1:
            raise DdptraceError(
                "A BucketedDataParallel over given process groups cannot be copied or pickled, because groups cannot: "
                "copy or save its `.module` or its state_dict, and wrap that again."
            )
        return {"module": self.module, "made_with": self._made_with, "training": self.training}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Wraps the module anew over the default group, so every rank takes part. Observers and hooks stay behind."""
        self.__init__(state["module"], **state["made_with"])  # type: ignore[misc] # as stock DDP's copies are made
        self.training = state["training"]

    @property
    def _syncs(self) -> bool:
        return self.require_backward_grad_sync and torch.is_grad_enabled()

    def _before_forward(self, syncs: bool) -> None:
        if torch.is_grad_enabled():
            self.reducer.before_forward(syncs)
            if self.reducer.layout.has_other_members():
                self._follow_members()
            else:
                self.reducer.rebuild()
        if self._require_forward_buffer_sync:
            take_from_first(self._peers, self._same_buffers(), "rank 0's buffers")

    def _same_buffers(self) -> list[Message]:
        """Return the buffers, after checking that all ranks have converted or replaced the same ones."""
        messages = messages_of(self._buffers_to_sync())
        kinds = [(flat.numel(), flat.dtype, flat.device) for _, flat in messages]
        if kinds != self._buffer_kinds:
            self._changes += 1
            self._verify(f"change {self._changes} of the buffers", "")
            self._buffer_kinds = kinds
        return messages

    def _follow_members(self) -> None:
        """Parameters were frozen or unfrozen here: check that they were on every rank, and make new buckets."""
        self._changes += 1
        self._verify(f"change {self._changes} of what is frozen", "")
        self.reducer.follow_members()

    def _verify(self, occasion: str, problem: str) -> None:
        settings: dict[str, object] = {
            "caps in bytes": self._options.caps_nbytes,
            "find_unused_parameters": self._options.find_unused_parameters,
            "broadcast_buffers": self.broadcast_buffers,
            "process groups": self._groups,  # by name: a group in another place would mix buckets
        }
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        verify(self._peers, occasion, problem, described(settings, named), before=self._verified)
        self._verified = occasion

    def _buffers_to_sync(self) -> list[torch.Tensor]:
        """Looked up each time: modules may replace their buffers."""
        return list(self.module.buffers()) if self.broadcast_buffers else []

    def _run(self, *inputs: Any, **keywords: Any) -> Any:
        with contextlib.ExitStack() as around:
            if autograd_profiler._is_profiler_enabled:  # as torch does in its own, so that files show the reducer
                around.enter_context(autograd_profiler.record_function(FORWARD_RANGE))
            if "torch._dynamo" in sys.modules:  # somebody compiles
                around.enter_context(splitting_at_buckets(self))
            return self.module(*inputs, **keywords)


_ordinals = itertools.count()
_alive: weakref.WeakValueDictionary[int, BucketedDataParallel] = weakref.WeakValueDictionary()


def alive() -> list[BucketedDataParallel]:
    """Return the wrappers in use, in the order in which they were made, which is the same on every rank."""
    return list(_alive.values())


@contextlib.contextmanager
def splitting_at_buckets(module: nn.Module) -> Iterator[None]:
    """Have Dynamo split what it compiles inside, at the borders of buckets of `module.bucket_bytes_cap` bytes."""
    before = DistributedDataParallel._active_ddp_module
    DistributedDataParallel._active_ddp_module = module  # type: ignore[assignment] # only its cap is read
    try:
        yield
    finally:
        DistributedDataParallel._active_ddp_module = before
