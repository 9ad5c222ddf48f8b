"""What strangers and libraries say, fit for a log and a warning: clean, short, and without what is secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from ddptrace.errors import printable

WORDS: Final = 200
"""Of what a stranger says so many characters are quoted."""
HIDDEN: Final = "***"

_USER: Final = re.compile(r"(?<=://)\S*@|[^\s/'\"(\[]+@")
_QUERY: Final = re.compile(r"(?<=[\w/.\]])\?[^\s'\")]+")
_HEADERS: Final = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_SHORTEST: Final = 3
"""A header's value that is shorter is no secret, and stands in many words."""


def quoted(said: object) -> str:
    return printable(masked(str(said)[: 10 * WORDS]))[:WORDS]


def masked(text: str) -> str:
    """Without users and passwords in addresses, without their queries, and without the values of the headers that the
    environment says."""
    for value in _header_values():
        text = text.replace(value, HIDDEN)
    return _USER.sub(f"{HIDDEN}@", _QUERY.sub(f"?{HIDDEN}", text))


def _header_values() -> Iterator[str]:
    for name, said in os.environ.items():
        for header in said.split(",") if _HEADERS.fullmatch(name) else ():
            value = header.partition("=")[2].strip() or header.strip()
            for form in (value, unquote(value), repr(unquote(value))[1:-1]):
                if len(form) >= _SHORTEST:
                    yield form
