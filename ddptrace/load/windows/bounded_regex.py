"""Regular expressions that a user gives: which of them could take for ever on a name that they do not match.

Python's `re` tries every way in which an expression can be read and knows no time limit. Where a part that may be long
or short is itself repeated, there is no end of ways: (a+)+x on 40 times "a" has 2^40 of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MOST_REPEATS: Final = 3
"""Each multiplies the ways by the length of the name."""
MOST_OPTIONS: Final = 8
"""Each doubles them."""

SIGNS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?[<=!:]*|(?:[*+?]|\{\d*,?\d*\})[?+]?|.", re.DOTALL)
QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")


def endless(pattern: str) -> str | None:
    """What about an expression, which compiles, makes it one of these, as the end of a sentence; None: nothing."""
    signs = SIGNS.findall(pattern)
    quantifiers = [sign for sign in signs if QUANTIFIER.fullmatch(sign)]
    options = sum(sign.startswith("?") for sign in quantifiers)
    if options > MOST_OPTIONS:
        return f"has more than {MOST_OPTIONS} optional parts"
    if len(quantifiers) - options > MOST_REPEATS:
        return f"has more than {MOST_REPEATS} repetitions"
    if any(_repeated_parts(signs)):
        return "repeats a part that can itself be read in several ways"
    if any(_is_repeat(one) and _is_repeat(two) for one, two in zip(signs[1:], signs[3:], strict=False)):
        return "has two repetitions beside each other"
    return None


def _repeated_parts(signs: list[str]) -> Iterator[bool]:
    """Of each repetition, whether what it repeats has several ways."""
    varies = [False]  # by group that is open: whether what it holds so far does
    part = False  # what stands before
    for sign in signs:
        if QUANTIFIER.fullmatch(sign):
            yield part and _is_repeat(sign)
            varies[-1] = True
        elif sign.startswith("("):
            varies.append(False)
        elif sign == "|":
            varies[-1] = True
        part = sign == ")" and len(varies) > 1 and varies.pop()
        varies[-1] |= part


def _is_repeat(sign: str) -> bool:
    return QUANTIFIER.fullmatch(sign) is not None and not sign.startswith("?")
