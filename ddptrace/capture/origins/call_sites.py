"""Where a collective that Python issues comes from, read off the stack from the tap outwards.

    tap                          ddptrace/capture/…              skipped
    all_gather_into_tensor       torch/distributed/…             skipped
    FSDPParamGroup.unshard       torch/distributed/fsdp/…        origin: FSDP; module: its group's
    Block.forward                model.py                        call site: the first frame of the program
    Module.__call__              (our wrapper)                   module, if no frame below it has named one
    Transformer.forward …        not read any more

If a library issues it for the program, its line is recorded beside the program's: the innermost line that does more
than pass on what its callers want. If no frame is the program's, as when all of it is installed, the library's line
stands alone.

In backward the stack leads through the autograd engine: beyond it is the line that called `backward()`, but no module
there issued the collective. On a device the engine runs in its own thread, with no line of the program on its stack.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from torch.fx import GraphModule

from ddptrace.capture.origins import frames
from ddptrace.capture.origins.frames import ENGINE, LIBRARY, PASSING, SITE, SKIPPED, Frame
from ddptrace.capture.origins.modules import ForwardSpans, ModuleNames
from ddptrace.capture.surface import Surface, ThreadState, tolerating
from ddptrace.schema import THROUGH, UNKNOWN_ORIGIN, Origin

MOST_CODES: Final = 2_000
"""Code objects to remember and keep alive, the latest; a forgotten one is described again."""

PROGRAM, HOOK = int(Origin.PROGRAM), int(Origin.HOOK)
SPANNED: Final = frozenset((PROGRAM, int(Origin.DTENSOR), int(Origin.MOE)))
"""If a collective of such an origin comes from a module, only spans of forwards can name the module in backward."""

UNKNOWN: Final = -1
MOST_NAMED: Final = 3
"""Modules of one gather that are named; the others are counted."""


class Source(NamedTuple):
    """Origin (or UNKNOWN_ORIGIN), and string ids of call site and module, 0 for none. The text of a call site that
    leads through a library has both lines."""

    origin: int
    site: int
    module: int


NOWHERE: Final = Source(UNKNOWN_ORIGIN, 0, 0)


class Anchor(NamedTuple):
    """The last frame that was read for the source of a unit's call. If the next call of the same operation for this
    unit finds the same instruction of the same code there, it has the same source, and no other frame is read."""

    depth: int  # frames above the one that issues the call
    code: CodeType
    instruction: int
    is_outermost: bool
    source: Source


class CallSites:
    """Finds the `Source` of a collective. Remembers each code object, so that a known frame costs a look into a
    dict."""

    def __init__(self, surface: Surface, names: ModuleNames, intern: Callable[[str], int], thread: ThreadState) -> None:
        self.spans = ForwardSpans(surface, names)
        self._surface = surface
        self._names = names
        self._intern = intern
        self._thread = thread
        self._known: dict[int, Frame] = {}
        self._lines: dict[int, str] = {0: ""}  # by string id
        self._meeting = threading.RLock()  # a signal's handler may come here while its thread holds it

    def of(self, frame: FrameType) -> Source:
        """Return the source of a collective issued by `frame`. Never raises."""
        if not self._surface.on:
            return NOWHERE
        try:
            return self._read(frame)[0]
        except Exception as error:  # training must not see it
            self._surface.failed(error)
            return NOWHERE

    def again(self, anchors: dict[str, Anchor], op: str) -> Source | None:
        """Return the source of a call of a unit that comes from where its last one of this operation came from; None
        if this one does not.

        Reads the stack at a fixed depth: call it only from `UnitSends.begun`."""
        anchor = anchors.get(op)
        if anchor is None or self._thread.hook:
            return None
        try:
            frame = sys._getframe(ISSUER + anchor.depth)
        except ValueError:  # the stack has fewer frames
            return None
        is_same = frame.f_code is anchor.code and frame.f_lasti == anchor.instruction
        return anchor.source if is_same and (not anchor.is_outermost or frame.f_back is None) else None

    def of_unit(self, frame: FrameType, anchors: dict[str, Anchor], op: str) -> Source:
        """As `of`, for a call of a unit, whose anchor it sets. `anchors`: of the unit, by operation."""
        if not self._surface.on:
            return NOWHERE
        try:
            source, last = self._read(frame)
            if source.origin not in SPANNED:  # the source of those is told by the running node, too
                anchors[op] = _anchor(frame, last, source)
            return source
        except Exception as error:  # training must not see it
            self._surface.failed(error)
            return NOWHERE

    def _read(self, issuer: FrameType) -> tuple[Source, FrameType]:
        """Return the source, and the last frame that was read for it."""
        frame: FrameType | None = issuer
        last = issuer
        origin, site, module, known = HOOK if self._thread.hook else PROGRAM, 0, UNKNOWN, self._known
        backward = alone = settled = False
        library: FrameType | None = None
        while frame is not None and not (site and module != UNKNOWN):
            last = frame
            what = known.get(id(frame.f_code)) or self._meet(frame)
            kind = what.kind
            if kind == SKIPPED:
                pass
            elif kind == SITE:
                site = site or what.sites.get(frame.f_lasti) or self._site(what, frame)
            elif kind == ENGINE:
                backward, settled = True, library is not None
                alone = alone or not settled  # a library beyond has only called backward
                module = self._of_node(origin, entered=True) if module == UNKNOWN else module
            else:
                if kind >= LIBRARY and not (site or settled):
                    library, settled = frame, kind != PASSING
                if not backward:
                    if what.origin and not site and (not origin or (what.encloses and origin != HOOK)):
                        origin = int(what.origin)
                    module = self._held(what, frame) if what.local and module == UNKNOWN else module
            frame = frame.f_back
        if library is not None and not (site and alone):
            site = self._through(site, library)
        if module == UNKNOWN:
            module = self._of_node(origin, entered=False)
        elif module and origin in SPANNED:
            self.spans.turn_on()
        return Source(origin, site, module), last

    def _meet(self, frame: FrameType) -> Frame:
        what = frames.describe(frame.f_code)
        with self._meeting:
            self._known[id(frame.f_code)] = what
            if len(self._known) > MOST_CODES:
                del self._known[next(iter(self._known))]
        return what

    def _site(self, what: Frame, frame: FrameType) -> int:
        line = frames.site(frame.f_code, frame.f_lineno)
        number = what.sites[frame.f_lasti] = self._intern(line)
        self._lines[number] = line
        return number

    def _through(self, site: int, library: FrameType) -> int:
        """Return the call site with both lines; with the library's alone if `site` is 0."""
        what = self._known.get(id(library.f_code)) or self._meet(library)
        number = what.through.get((site, library.f_lasti))
        if number is None:
            line = frames.site(library.f_code, library.f_lineno)
            text = f"{self._lines.get(site, '')}{THROUGH}{line}" if site else line
            number = what.through[site, library.f_lasti] = self._intern(text)
        return number

    def _held(self, what: Frame, frame: FrameType) -> int:
        """Return the module in a frame's variable. Reading it copies the frame's locals once; such frames end soon."""
        holder = frame.f_locals.get(what.local)
        held = getattr(holder, what.holds, None) if what.holds else holder
        if what.kind >= LIBRARY:
            return self._holding(held)
        if held is None or isinstance(held, GraphModule):  # a graph that torch made out of the program's modules
            return UNKNOWN
        modules = held if isinstance(held, tuple) else (held,)
        return self._intern(", ".join([self._names.name(module) for module in modules]))

    def _holding(self, parameters: Any) -> int:
        """Return the modules that hold the parameters in a library's frame, UNKNOWN if it holds none there."""
        with tolerating():  # in another version of the library that variable is missing, or is something else
            return self._intern(some_of(self._names.owners(parameters)))
        return UNKNOWN

    def _of_node(self, origin: int, *, entered: bool) -> int:
        """Return the module whose node runs on this thread. `entered`: a call on this thread led into the engine."""
        if origin not in SPANNED or not self.spans.in_backward():
            return 0
        self.spans.turn_on()
        return self._intern(self.spans.name(entered=entered))


ISSUER: Final = 4
"""Frames from `CallSites.again` up to the one that issues a collective: of `UnitSends.begun`, of `Collectives.before`,
of the tap."""


def _anchor(issuer: FrameType, last: FrameType, source: Source) -> Anchor:
    depth, frame = 0, issuer
    while frame is not last and frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return Anchor(depth, last.f_code, last.f_lasti, last.f_back is None, source)


def some_of(names: Sequence[str]) -> str:
    """Return a text as in "layers.0, layers.1, layers.2 and 5 more": one gather may be for hundreds of modules."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
