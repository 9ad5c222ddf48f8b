"""Where things begin and end in JSON text, found by counting brackets: exact, and indifferent to what they hold.

Slower than a parser that runs through, so it serves where that one refuses: at the edges of a file and at damage.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddptrace.load.kineto.source import NotATrace

TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(")?|[][{}]', re.DOTALL)  # group 1: the string is closed
GAP: Final = re.compile(rb"[\s,]*+")
SCALAR: Final = re.compile(rb'[^\s,\[\]{}"]++')
LIST_OPENS: Final = re.compile(rb"\s*+:\s*+\[")
UNDECIDED: Final = re.compile(rb"\s*+(?::\s*+)?\Z")
Text = bytes | bytearray
BOM: Final = b"\xef\xbb\xbf"
COMMA: Final = ord(",")
QUOTE: Final = ord('"')
DEEPEST: Final = 100_000  # parsers give up at a thousand
EVENTS_KEY: Final = b'"traceEvents"'


@dataclass(frozen=True, slots=True)
class Elements:
    """The whole elements of a list as far as the text goes: begin and end of each, and what comes after the last."""

    spans: list[tuple[int, int]]
    at: int  # everything before is dealt with
    end: ListEnd
    needs_comma: bool  # the last thing before `at` is an element
    odd_gaps: int  # between elements, with more or fewer commas than one


class ListEnd(enum.Enum):
    """What stands where the elements end."""

    OPEN = enum.auto()  # no whole element, for want of more text
    CLOSED = enum.auto()  # the list's own bracket, which `at` is behind
    BROKEN = enum.auto()  # what no list has there


def elements(text: Text, at: int, is_last: bool, needs_comma: bool) -> Elements:
    """Split `text` from `at`, which is inside a list, between elements. `is_last`: nothing more will follow."""
    spans: list[tuple[int, int]] = []
    odd = 0
    while True:
        begin = behind_gap(text, at)
        first, commas = text[begin : begin + 1], text.count(b",", at, begin)
        if not first:
            return Elements(spans, at, ListEnd.OPEN, needs_comma, odd)
        if first == b"}":
            return Elements(spans, begin, ListEnd.BROKEN, needs_comma, odd)
        if first == b"]":
            return Elements(spans, begin + 1, ListEnd.CLOSED, False, odd + (commas > 0))
        odd += commas != needs_comma
        end = _element_end(text, begin)
        if end is None or (end == len(text) and not is_last and first not in b'{["'):
            return Elements(spans, begin, ListEnd.OPEN, False, odd)
        spans.append((begin, end))
        at, needs_comma = end, True


def behind_gap(text: Text, at: int) -> int:
    """Where the next element, or the list's end, begins."""
    gap = GAP.match(text, at)
    return gap.end() if gap else at


def _element_end(text: Text, at: int) -> int | None:
    if text[at : at + 1] not in (b"{", b"[", b'"'):
        scalar = SCALAR.match(text, at)
        return scalar.end() if scalar else None
    for _, end, depth in _tokens(text, at):
        if depth == 0:
            return end
    return None


def _tokens(text: Text, at: int, depth: int = 0) -> Iterator[tuple[int, int, int]]:
    """Begin, end and the depth behind each string and bracket; ends before a string that the text does not close.

    Raises NotATrace at a flood of brackets.
    """
    for token in TOKEN.finditer(text, at):
        if text[token.start()] != QUOTE:
            depth += 1 if text[token.start()] in b"[{" else -1
            if depth > DEEPEST:
                raise NotATrace(f"its brackets nest more than {DEEPEST:,} deep")
        elif token[1] is None:
            return
        yield token.start(), token.end(), depth


class Surroundings:
    """The text around the events of a file, with `[]` in their place, as it comes in.

    `text` is what was seen. It grows until a key `traceEvents` of the outermost object opens a list, or until the file
    ends. A file that is a list itself has its bracket as its only surroundings.
    """

    def __init__(self) -> None:
        self.text = b""
        self.head_nbytes = 0  # of `text` up to and with the list that was opened last
        self.has_nodes = False  # the outermost object has them, as an execution trace does
        self._at = 0
        self._depth = 0

    def add(self, piece: bytes) -> bytes | None:
        """Take in more text. Where a list of events opens in it, give back what stands behind the bracket."""
        self.text += piece if self.text else piece.removeprefix(BOM)
        behind = self._opening()
        if behind is None:
            return None
        rest, self.text = self.text[behind:], self.text[:behind] + b"]"
        self.head_nbytes = self._at = len(self.text)
        return rest

    def _opening(self) -> int | None:
        if not self._at and self.text.lstrip()[:1] == b"[":
            return self.text.index(b"[") + 1
        for begin, end, depth in _tokens(self.text, self._at, self._depth):
            if depth == 1 and self.text[begin:end] == EVENTS_KEY:
                opens = LIST_OPENS.match(self.text, end)
                if opens:
                    return opens.end()
                if UNDECIDED.match(self.text, end):
                    return None  # asked again from this key on
            self.has_nodes |= depth == 1 and self.text[begin:end] == b'"nodes"'
            self._at, self._depth = end, depth
        return None


def cleaned(text: bytes) -> bytes:
    """Text of one JSON value with what writers get wrong put right: letters that are no UTF-8, control characters in
    strings, halves of surrogate pairs, and NaN and infinities, which become null."""
    text = text.decode(errors="replace").encode()
    text = _STRING_OR_NO_NUMBER.sub(lambda found: found[1].translate(_SPACES) if found[1] else b"null", text)
    return _ESCAPE.sub(_whole_escape, text)


_SPACES: Final = bytes(max(code, 32) for code in range(256))
_STRING_OR_NO_NUMBER: Final = re.compile(
    rb'("(?:[^"\\]++|\\.)*+"?)|[-+]?\b(?:nan(?:\(\w*\))?|inf(?:inity)?)(?!\w)', re.DOTALL | re.IGNORECASE
)
_ESCAPE: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.", re.DOTALL)


def _whole_escape(found: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if len(found[0]) == 6 else found[0]
