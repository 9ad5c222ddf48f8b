"""Where a collective that Python issues comes from, read off the stack from the tap outwards.

    tap                          ddptrace/capture/tap.py         says nothing
    all_gather_into_tensor       torch/distributed/…             says nothing
    FSDPParamGroup.unshard       torch/distributed/fsdp/…        origin: FSDP; module: its group's
    Block.forward                model.py                        call site: the first of the program's frames
    Module.__call__              (our wrapper)                   module, where no frame below it told one
    Transformer.forward …        not looked at any more

In backward the way out leads through the autograd engine: beyond it is the line that called `backward()`, but no module
there has to do with it. On a device the engine runs in a thread of its own, with no line of the program on its stack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, NamedTuple

from torch.fx import GraphModule

from ddptrace.capture import frames
from ddptrace.capture.forward_spans import ForwardSpans
from ddptrace.capture.frames import ENGINE, SITE, SKIPPED, Frame
from ddptrace.capture.module_names import ModuleNames
from ddptrace.capture.surface import Surface, ThreadState
from ddptrace.schema import UNKNOWN_ORIGIN, Origin

MOST_CODES: Final = 2_000
"""Code objects remembered, and kept alive, the latest; one that was forgotten is met again."""

PROGRAM, HOOK = int(Origin.PROGRAM), int(Origin.HOOK)
SPANNED: Final = frozenset((PROGRAM, int(Origin.DTENSOR)))
"""Where a collective of these comes from a module, its like in backward can be known by spans of forwards alone."""
UNKNOWN: Final = -1


class Source(NamedTuple):
    """Origin (or UNKNOWN_ORIGIN), and string ids of call site and module, 0 none."""

    origin: int
    site: int
    module: int


NOWHERE: Final = Source(UNKNOWN_ORIGIN, 0, 0)


class CallSites:
    """Remembers what each code object says, so that a frame seen before costs a look into a dict."""

    def __init__(self, surface: Surface, names: ModuleNames, intern: Callable[[str], int], thread: ThreadState) -> None:
        self.spans = ForwardSpans(surface, names)
        self._surface = surface
        self._names = names
        self._intern = intern
        self._thread = thread
        self._known: dict[int, Frame] = {}
        self._meeting = threading.RLock()  # a signal's handler may come here while its thread holds it

    def of(self, frame: FrameType) -> Source:
        """Of a collective issued by `frame`. Never raises."""
        if not self._surface.on:
            return NOWHERE
        try:
            return self._read(frame)
        except Exception as error:  # training must not see it
            self._surface.failed(error)
            return NOWHERE

    def _read(self, issuer: FrameType) -> Source:
        frame: FrameType | None = issuer
        origin, site, module, known = HOOK if self._thread.hook else PROGRAM, 0, UNKNOWN, self._known
        backward = False
        while frame is not None and not (site and module != UNKNOWN):
            what = known.get(id(frame.f_code)) or self._meet(frame)
            kind = what.kind
            if kind == SKIPPED:
                pass
            elif kind == SITE:
                site = site or what.sites.get(frame.f_lasti) or self._site(what, frame)
            elif kind == ENGINE:
                backward = True
                module = self._of_node(origin, entered=True) if module == UNKNOWN else module
            elif not backward:
                origin = origin or (0 if site else int(what.origin))
                module = self._held(what, frame) if what.local and module == UNKNOWN else module
            frame = frame.f_back
        if module == UNKNOWN:
            module = self._of_node(origin, entered=False)
        elif module and origin in SPANNED:
            self.spans.turn_on()
        return Source(origin, site, module)

    def _meet(self, frame: FrameType) -> Frame:
        what = frames.describe(frame.f_code)
        with self._meeting:
            self._known[id(frame.f_code)] = what
            if len(self._known) > MOST_CODES:
                del self._known[next(iter(self._known))]
        return what

    def _site(self, what: Frame, frame: FrameType) -> int:
        number = what.sites[frame.f_lasti] = self._intern(frames.site(frame.f_code, frame.f_lineno))
        return number

    def _held(self, what: Frame, frame: FrameType) -> int:
        """The module in a frame's variable. Reading it copies the frame's locals once; such frames end soon."""
        holder = frame.f_locals.get(what.local)
        held = getattr(holder, what.holds, None) if what.holds else holder
        if held is None or isinstance(held, GraphModule):  # a graph that torch made out of the program's modules
            return UNKNOWN
        modules = held if isinstance(held, tuple) else (held,)
        return self._intern(", ".join([self._names.name(module) for module in modules]))

    def _of_node(self, origin: int, *, entered: bool) -> int:
        """The module whose node runs on this thread. `entered`: a call on this thread led into the engine."""
        if origin not in SPANNED or not self.spans.in_backward():
            return 0
        self.spans.turn_on()
        return self._intern(self.spans.name(entered=entered))
