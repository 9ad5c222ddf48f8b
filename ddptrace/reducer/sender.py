"""How a bucket is sent: by an all-reduce, or by a communication hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import Future  # what a Work's get_future gives; torch.futures.Future is a kind of it

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import Bucket
from ddptrace.reducer.hook_agreement import HookAgreement, SilentHooks, issued
from ddptrace.reducer.observer import Voice
from ddptrace.reducer.peers import Peers

CommHook = Callable[[Any, Any], torch.futures.Future[Any]]

TAKING_TURNS: Final = tuple(
    f"torch.distributed.algorithms.ddp_comm_hooks.{module}" for module in ("powerSGD_hook", "quantization_hooks")
)
"""Torch's hooks that start further collectives in the callbacks of their first, and wait for them there."""


class GradBucket:
    """The argument of a hook, with the methods of `torch.distributed.GradBucket`, which Python cannot construct."""

    __slots__ = ("_bucket", "_buffer", "_is_last")

    def __init__(self, bucket: Bucket, *, is_last: bool) -> None:
        self._bucket, self._buffer, self._is_last = bucket, bucket.buffer, is_last

    def index(self) -> int:
        return self._bucket.index

    def buffer(self) -> Tensor:
        """The gradients in one flat tensor, not divided by anything yet."""
        return self._buffer

    def set_buffer(self, tensor: Tensor) -> None:
        self._buffer = tensor

    def gradients(self) -> list[Tensor]:
        """Views into the buffer, one for each parameter."""
        return self._bucket.views_of(self._buffer)

    def parameters(self) -> list[Tensor]:
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        """Whether no bucket follows in this backward."""
        return self._is_last


class Sender:
    """Sends buckets, bucket i over group i modulo their number, and waits for them.

    Gloo runs a hook's callbacks on its two worker threads. A callback that starts a collective and waits for it
    occupies its thread meanwhile, so two such callbacks deadlock; and the threads of two ranks may start their
    collectives in different orders, so that different collectives meet. With torch's hooks of this kind a bucket
    therefore leaves only when the previous one is done, and backward goes on only when the last one is.
    """

    __slots__ = (
        "_add_up",
        "_groups",
        "_hook",
        "_on_its_way",
        "_peers",
        "_silence",
        "_state",
        "_takes_turns",
        "_voice",
        "agreement",
    )

    def __init__(self, groups: Sequence[dist.ProcessGroup], peers: Peers, voice: Voice) -> None:
        self._groups, self._peers, self._voice = tuple(groups), peers, voice
        self._add_up = dist.AllreduceOptions()  # their default is the sum
        if hasattr(self._add_up, "asyncOp"):  # in a torch without it, every operation is asynchronous
            self._add_up.asyncOp = True
        self.agreement, self._silence = HookAgreement(peers), SilentHooks(peers)
        self._hook: CommHook | None = None
        self._state: object = None
        self._takes_turns = False
        self._on_its_way: Bucket | None = None  # the next bucket waits for its end, if they take turns

    @property
    def has_hook(self) -> bool:
        return self._hook is not None

    def register(self, state: object, hook: CommHook) -> None:
        """Let `hook(state, bucket)` reduce the buckets from now on. Raises DdptraceError for a second one."""
        if self._hook is not None:
            raise DdptraceError(
                "A communication hook is registered already, and there can be only one; combine the two."
            )
        if not callable(hook):
            raise DdptraceError(
                f"A communication hook is called with (state, bucket); a {type(hook).__name__} cannot be."
            )
        self._state, self._hook = state, hook
        made_in = getattr(hook, "__module__", ""), type(state).__module__  # a user's hook may pass its state to torch's
        self._takes_turns = any(module in TAKING_TURNS for module in made_in)

    def send(self, bucket: Bucket, *, is_last: bool) -> None:
        """Send a bucket. `is_last`: no bucket follows in this backward.

        This runs for each bucket while backward needs the processor, so it calls the group itself: `dist.all_reduce`
        would check its arguments first.
        """
        tell = self._voice.tell
        self._settle()
        if tell:
            tell("bucket_launching", bucket.index, bucket.nbytes)
        if self._hook is None:
            group = self._groups[bucket.index % len(self._groups)]
            bucket.sent = group.allreduce([bucket.on_wire], self._add_up)
        else:
            bucket.sent = self._ask_hook(self._hook, bucket, is_last)
        if tell:
            tell("bucket_launched", bucket.index, bucket.sent)
        if self._takes_turns and _has_worker_threads(bucket, self._peers):
            self._on_its_way = bucket
        if is_last:  # what the reducer sends next must not meet a callback's collective either
            self._settle()

    def receive(self, bucket: Bucket) -> None:
        """Wait until the bucket's buffer holds the mean over the ranks; on a GPU the current stream waits."""
        tell = self._voice.tell
        if tell:
            tell("wait_begins", bucket.index)
        if isinstance(bucket.sent, Future):
            bucket.take(_tensor(self._result(bucket), bucket))
            self._silence.on_their_way.pop(bucket.index, None)
        else:
            self._peers.wait(bucket.sent, bucket.name)  # type: ignore[arg-type] # a Work: what `send` left there
        bucket.sent = None
        if tell:
            tell("bucket_done", bucket.index)

    def _settle(self) -> None:
        """If buckets take turns, wait for the bucket on its way."""
        bucket, self._on_its_way = self._on_its_way, None
        if bucket is not None:
            self._result(bucket)

    def _result(self, bucket: Bucket) -> object:
        return self._peers.result(bucket.sent, f"the hook's future for bucket {bucket.index}")  # type: ignore[arg-type] # a Future

    def _ask_hook(self, hook: CommHook, bucket: Bucket, is_last: bool) -> torch.futures.Future[Any]:
        tell = self._voice.tell
        if tell:
            tell("hook_begins", bucket.index, _name(hook))
        issued_before = issued()
        future = hook(self._state, GradBucket(bucket, is_last=is_last))
        if tell:
            tell("hook_ends", bucket.index)
        if not isinstance(future, Future):
            raise DdptraceError(
                f"The communication hook {_name(hook)} returned {_a(future)} for bucket {bucket.index} instead of a "
                "torch.futures.Future of the reduced tensor; return `work.get_future()`, or a `.then` of it."
            )
        self._silence.asked(bucket.index, future, issued_before)
        return future


def _tensor(value: object, bucket: Bucket) -> Tensor:
    """Return the result of a hook: the tensor, or the only tensor of a list, as in the future of a Work."""
    result = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    if not isinstance(result, Tensor) or result.numel() != bucket.buffer.numel():
        raise DdptraceError(
            f"The communication hook's future for bucket {bucket.index} holds {_a(result)}, and it must hold one "
            f"tensor of the bucket's {bucket.buffer.numel()} elements."
        )
    return result


def _has_worker_threads(bucket: Bucket, peers: Peers) -> bool:
    """Whether callbacks run on worker threads of the backend; NCCL's run at once, in the order of their
    registration."""
    return bucket.buffer.device.type == "cpu" or str(dist.get_backend(peers.group)) == "gloo"


def _name(hook: object) -> str:
    return str(getattr(hook, "__name__", type(hook).__name__))


def _a(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.numel()} elements"
    return "None" if value is None else f"a {type(value).__name__}"
