"""Exact reading of JSON text: where things begin and end, and decimal microseconds as whole nanoseconds.

Counting brackets is slower than a parser that runs through. It serves where that parser refuses: at the edges of a file
and at damage. Kineto writes some times relative to `baseTimeNanoseconds` and some since the epoch, both with three
decimals. A float64 cannot hold the latter, so the digits themselves become the integer.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import FAR_NS, Ints
from ddptrace.load.kineto.source import NotATrace

LONGEST_NUMBER: Final = 64  # characters
MOST_DIGITS: Final = (
    16  # of whole microseconds, the first at most 4: 5 * 10**18 ns fit an int64, and reach the year 2128
)
POINT: Final = ord(".")
UNREADABLE: Final = -(2**63)
_SCALE: Final = np.array([1000, 100, 10, 1], np.int64)
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
_SPACES: Final = bytes(max(code, 32) for code in range(256))
_STRING_OR_NO_NUMBER: Final = re.compile(
    rb'("(?:[^"\\]++|\\.)*+"?)|[-+]?\b(?:nan(?:\(\w*\))?|inf(?:inity)?)(?!\w)', re.DOTALL | re.IGNORECASE
)
_ESCAPE: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.", re.DOTALL)


def nanoseconds(digits: bytes) -> int:
    """A JSON number of microseconds as whole nanoseconds, exactly; finer digits are rounded half to even.

    Raises ValueError where it is no number, or one beyond any clock.
    """
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a time of {len(digits)} characters")
    try:
        value = Decimal(digits.decode())
    except (ArithmeticError, UnicodeDecodeError) as error:
        raise ValueError(f"a time that is no number: {digits!r}") from error
    if not value.is_finite() or value.adjusted() > 18:
        raise ValueError(f"a time beyond any clock: {digits!r}")
    return 0 if value.adjusted() < -18 else round(Fraction(value) * 1000)


def time_column(numbers: Sequence[bytes]) -> tuple[Ints, NDArray[np.bool_]]:
    """Times as nanoseconds, and which of them could be read (the others are 0). `numbers` are texts of JSON values."""
    text = b",".join(numbers)
    plain = _plain(text, len(numbers))
    if plain is not None:
        return plain, plain < FAR_NS
    values = np.array([_or_unreadable(bytes(number)) for number in numbers], np.int64)
    good = values != UNREADABLE
    return np.where(good, values, 0), good


def _or_unreadable(digits: bytes) -> int:
    try:
        value = nanoseconds(digits)
    except ValueError:
        return UNREADABLE
    return value if -FAR_NS < value < FAR_NS else UNREADABLE


def _plain(text: bytes, count: int) -> Ints | None:
    """Numbers of digits and at most three decimals, all at once; None where one of them is anything else."""
    if not text or text.translate(None, b"0123456789.,"):
        return None
    codes = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(codes == COMMA), len(codes))
    points = np.flatnonzero(codes == POINT)
    whole, decimals = _widths(ends, points)
    counts_agree = len(ends) == count and len(points) == int((decimals >= 0).sum())
    if (
        not counts_agree
        or whole.min() < 1
        or decimals.max() > 3
        or (decimals == 0).any()
        or _too_long(codes, ends, whole)
    ):
        return None
    digits = np.fromstring(text.replace(b".", b""), np.int64, sep=",")
    return np.asarray(digits * _SCALE[np.maximum(decimals, 0)], np.int64)


def _too_long(codes: NDArray[np.uint8], ends: Ints, whole: Ints) -> bool:
    if whole.max() < MOST_DIGITS:
        return False
    begins = np.append(0, ends[:-1] + 1)
    return bool(whole.max() > MOST_DIGITS or (codes[begins[whole == MOST_DIGITS]] > ord("4")).any())


def _widths(ends: Ints, points: Ints) -> tuple[Ints, Ints]:
    """How many digits each number has before its point and after it; -1 after where it has no point."""
    begins = np.append(0, ends[:-1] + 1)
    owner = np.searchsorted(ends, points)  # a second point in one number overwrites the first: the counts then differ
    point = np.full(len(ends), -1)
    point[owner] = points
    has = point >= 0
    return np.where(has, point, ends) - begins, np.where(has, ends - point - 1, -1)


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


def _whole_escape(found: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if len(found[0]) == 6 else found[0]
