"""How a bucket is sent: by an all-reduce, or by a communication hook that all ranks have agreed on.

Different hooks send different messages; a backend then ends the process, or mixes them. So the ranks compare whether
all have the same hook, or none, and whether it sends on all of them. A rank without a hook never calls
`register_comm_hook`, so they compare in a place that each of them reaches: once, in their first synchronised forward. A
hook that is registered later is compared at once, by a rank that waits for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import Future  # what a Work's get_future gives; torch.futures.Future is a kind of it
from torch.distributed.distributed_c10d import Store, _world

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import Bucket
from ddptrace.reducer.misuse import another_hook, another_model
from ddptrace.reducer.notes import text_at
from ddptrace.reducer.observer import Voice
from ddptrace.reducer.peers import Peers

CommHook = Callable[[Any, Any], torch.futures.Future[Any]]

ALGORITHMS: Final = "torch.distributed.algorithms."
"""Where torch's own hooks and their states are."""
TAKING_TURNS: Final = tuple(
    f"{ALGORITHMS}ddp_comm_hooks.{module}" for module in ("powerSGD_hook", "quantization_hooks")
)
"""Torch's hooks that start further collectives in the callbacks of their first, and wait for them there."""

NO_HOOK: Final = "no communication hook"
FIRST_FORWARD: Final = "the first synchronised forward"
ASKED: Final = "silent"
"""Key in the store: the forward in which a rank whose hook sent nothing waits for the others."""


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


class HookAgreement:
    """`is_settled`: the ranks have compared their hooks."""

    __slots__ = ("_is_first", "_mine", "_peers", "is_settled")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._mine = NO_HOOK
        self.is_settled = False
        self._is_first = False  # in the first forward now
        peers.looks.append(self._another_model)

    def registered(self, state: object, hook: Callable[..., object]) -> None:
        """Note the hook of this rank. After the first forward, raises DdptraceError if another rank does not register
        it."""
        self._mine = described(state, hook)
        if self.is_settled:
            self._compare("the registration of a communication hook")

    def settle(self) -> None:
        """Compare the hooks. Collective, on the host. Raises DdptraceError, the same on every rank."""
        key = _first_forward_key(self._peers.number)
        self._peers.tell(key, str(self._peers.me), shared=True)
        self._is_first = True
        self._compare(FIRST_FORWARD)
        self.is_settled, self._is_first = True, False
        self._peers.tell(key, "", shared=True)

    def _compare(self, occasion: str) -> None:
        said = list(map(str, self._peers.gather(occasion, self._mine)))
        for rank, other in zip(self._peers.ranks, said, strict=True):
            if other != said[0]:
                self._peers.part()
                raise DdptraceError(another_hook(rank, other, self._peers.ranks[0], said[0]))

    def _another_model(self, _: Store) -> str:
        """Return a sentence if another rank is in the first forward of another model, where this rank never was."""
        if not self._is_first:
            return ""
        peers, store = self._peers, self._peers.shared.store
        for number in range(1, peers.made(store) + 1):
            there = text_at(store, _first_forward_key(number)) if number != peers.number else ""
            if (
                there
                and not store.check([f"{number}/{peers.own_key(FIRST_FORWARD)}"])
                and not self._was_here(store, int(there))
            ):
                return another_model(int(there), number, peers.me, peers.number)
        return ""

    def _was_here(self, store: Store, rank: int) -> bool:
        """Whether a rank has been in this model's first forward, and has gone on to the next model's."""
        return store.check([f"{self._peers.number}/{FIRST_FORWARD}/{self._peers.ranks.index(rank)}"])


class SilentHooks:
    """Does a communication hook that sends nothing for a bucket, as in the local steps of local SGD, do so on every
    rank?

    If it does so on one rank alone, that rank's next collective meets the others' bucket, and the backend ends the
    process. So a rank whose hook returns a future that it finished itself, and issued no collective, goes on only when
    the others have passed that bucket too:

        rank 0   hook 0: nothing sent | waits for rank 1 . . . . . . . . . gives up: a sentence, and a note
        rank 1   hook 0: all-reduce | hook 1 | ... | waits for bucket 0 . . . . . . looks: the note

    `on_their_way`: by bucket, the hook's futures that were not waited for yet.
    """

    __slots__ = ("_answered", "_answered_in", "_forward", "_last", "_met", "_peers", "on_their_way")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._forward = self._last = -1  # forward and bucket of the last future
        self.on_their_way: dict[int, Future[Any]] = {}
        self._met: list[str] = []  # the key of the last meeting
        self._answered: set[str] = set()  # in the looks of one forward
        self._answered_in = -1
        peers.looks.append(self._answer)

    def asked(self, bucket: int, future: Future[Any], issued_before: int) -> None:
        """A hook returned this future. Raises DdptraceError if it sent nothing and others do not pass the bucket."""
        peers = self._peers
        finished_itself = type(future) is torch.futures.Future and future.done()
        if finished_itself and peers.on_host and peers.size > 1 and issued() == issued_before:
            kind = f"silent/{peers.forward}/{bucket}"
            peers.tell(ASKED, str(peers.forward))
            peers.meet(kind, "", f"bucket {bucket} without communication, as its hook left it", forget=self._met)
            self._met = [peers.own_key(kind)]
        self._forward, self._last = peers.forward, bucket
        self.on_their_way[bucket] = future

    def _answer(self, store: Store) -> str:
        """Answer ranks that wait: a bucket whose future is done here does not hold them, although its hook sent
        something."""
        if self._forward == self._peers.forward and text_at(store, ASKED) == str(self._forward):
            self._forget_answers(store)
            for bucket in range(self._last + 1):  # several ranks may ask, each about another bucket
                key, future = self._peers.own_key(f"silent/{self._forward}/{bucket}"), self.on_their_way.get(bucket)
                if key not in self._answered and (future is None or future.done()):
                    store.set(key, "")
                    self._answered.add(key)
        return ""

    def _forget_answers(self, store: Store) -> None:
        """Remove the answers of an earlier forward: this rank ended its backward, so all ranks have passed its
        buckets."""
        if self._answered_in != self._forward:
            for key in self._answered:
                store.delete_key(key)
            self._answered.clear()
            self._answered_in = self._forward


def _first_forward_key(number: int) -> str:
    """Return the key in the store of a rank in the first forward of this model; its text is "" once all have been
    there."""
    return f"first/{number}"


def described(state: object, hook: Callable[..., object]) -> str:
    """Describe a hook: its name and the type of its state. Of torch's own hooks and states also their settings: those
    of a program may rightly differ between ranks."""
    settings = ", ".join(_settings(state))
    with_state = "" if state is None else f" with a {type(state).__name__}({settings})"
    return f"the communication hook {_qualified_name(hook)}{with_state}"


def _qualified_name(hook: object) -> str:
    if isinstance(hook, functools.partial):
        return _qualified_name(hook.func)
    module = str(getattr(hook, "__module__", ""))
    name = f"{module}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
    if not module.startswith(ALGORITHMS):
        return name
    inner = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    return " around ".join([name, *(_qualified_name(wrapped) for wrapped in inner if callable(wrapped))])


def _settings(state: object) -> Iterator[str]:
    if type(state).__module__.startswith(ALGORITHMS):
        for name in sorted(getattr(state, "__dict__", ()) or getattr(state, "__slots__", ())):
            value = getattr(state, name)
            if value is None or isinstance(value, bool | int | float | str):
                yield f"{name}={value!r}"


def issued() -> int:
    """Return how many collectives this process has issued, over all groups that count them."""
    count = 0
    for group in list(_world.pg_map):
        try:
            count += group._get_sequence_number_for_group()  # type: ignore[attr-defined] # missing from torch's stubs
        except RuntimeError:  # a backend that does not count
            continue
    return count
