"""What commands say. Every word of theirs goes to the terminal through here, so that nothing in it is obeyed there."""

from __future__ import annotations

import json
from typing import Any

import click

from ddptrace.errors import escaped, printable


def say(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print lines to stdout, or to stderr. `nl`: end them with a line break."""
    click.echo(printable_lines(text), nl=nl, err=err)


def printable_lines(text: str) -> str:
    """`printable` of each line."""
    return "\n".join(map(printable, text.split("\n")))


def say_json(value: Any) -> None:
    """Print a value as JSON, on one line."""
    say_json_piece(as_json_bytes(value))
    click.echo()


def say_json_piece(piece: bytes) -> None:
    """Print a part of a JSON text. What a terminal would obey stands in texts alone, and is there as a JSON escape, so
    that a program reads the same."""
    click.echo(escaped(piece.decode(), lambda sign: json.dumps(sign)[1:-1]).encode(), nl=False)


def as_json_bytes(value: Any) -> bytes:
    """Encode a value. What no encoding can hold, as in the name of a folder, becomes the JSON escape of itself."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
