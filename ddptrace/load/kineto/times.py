"""Microseconds written as decimal text into whole nanoseconds, exactly.

Kineto writes some times relative to `baseTimeNanoseconds` and some since the epoch, both with three decimals. A float64
cannot hold the latter, so the digits themselves become the integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import FAR_NS, Ints

LONGEST_NUMBER: Final = 64  # characters
MOST_DIGITS: Final = (
    16  # of whole microseconds, the first at most 4: 5 * 10**18 ns fit an int64, and reach the year 2128
)
POINT, COMMA = ord("."), ord(",")
UNREADABLE: Final = -(2**63)


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


_SCALE: Final = np.array([1000, 100, 10, 1], np.int64)


def _widths(ends: Ints, points: Ints) -> tuple[Ints, Ints]:
    """How many digits each number has before its point and after it; -1 after where it has no point."""
    begins = np.append(0, ends[:-1] + 1)
    owner = np.searchsorted(ends, points)  # a second point in one number overwrites the first: the counts then differ
    point = np.full(len(ends), -1)
    point[owner] = points
    has = point >= 0
    return np.where(has, point, ends) - begins, np.where(has, ends - point - 1, -1)
