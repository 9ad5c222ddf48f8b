"""What a person calls a run: its name, its tags and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.errors import TraceStateError

TEXT_MAX: Final = 10_000
"""Characters of a text that are kept: the manifest is read often."""
TAGS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Labels:
    """A run's name, tags and notes; empty where a person gave none."""

    name: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return those that were given, as in the manifest."""
        given = {"name": self.name, "tags": list(self.tags), "notes": self.notes}
        return {key: value for key, value in given.items() if value}


UNLABELLED: Final = Labels()


def labels_of(name: object, tags: object, notes: object) -> Labels:
    """Check what a caller gave. Raises TraceStateError if a name or a note is no text, or a tag is none."""
    for word, given in (("name", name), ("notes", notes)):
        if not isinstance(given, str | None):
            raise TraceStateError(f"{word}={given!r} is not a text; give a string")
    if isinstance(tags, str) or not isinstance(tags, Iterable | None):
        raise TraceStateError(f'tags={tags!r} are not a list of texts; give a list, such as ["baseline", "lr 0.1"]')
    listed = list(tags or ())
    for tag in listed:
        if not isinstance(tag, str):
            raise TraceStateError(f"tags has {tag!r}, which is not a text; give a list of strings")
    return Labels(_kept(name), tuple(map(_kept, listed[:TAGS_MAX])), _kept(notes))


def _kept(given: object) -> str:
    return "" if given is None else str(given)[:TEXT_MAX].encode("utf-8", "replace").decode()
