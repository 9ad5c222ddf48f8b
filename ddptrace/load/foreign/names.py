"""What the name of a trace file tells of its rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MOST_DIGITS: Final = 6  # a longer number is a time or a job's id
NUMBER: Final = rf"(\d{{1,{MOST_DIGITS}}})(?!\d)"

IN_NAME: Final = tuple(
    re.compile(pattern + NUMBER, re.IGNORECASE)
    for pattern in (r"(?<![a-z])rank[-_ =:]?", r"(?<![a-z])worker[-_ =:]?", r"(?:^|[-_ .])r(?=\d{1,6}(?:$|[-_ .]))")
)
"""rank-70.Mar…, rank_0, trace_8_rank_1, "run rank 3 step 5"; worker3_step…; trace_r3.json. First come, first taken."""


def rank_in_name(path: Path) -> int | None:
    """By the file's name, else by its folder's (rank3/trace.json). None where neither tells."""
    for text in (path.name, path.parent.name):
        for pattern in IN_NAME:
            found = pattern.search(text)
            if found is not None:
                return int(found[1])
    return None


def same_but_for_digits(one: Path, other: Path) -> bool:
    """Names as one process gives them to one window after another."""
    return re.sub(r"\d+", "0", one.name) == re.sub(r"\d+", "0", other.name)
