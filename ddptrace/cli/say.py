"""Prints what commands say, without anything that a terminal would obey."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from ddptrace.errors import escaped, printable

PLAIN: Final = bytes(range(ord(" "), ord("~") + 1))


def say(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print lines to stdout, or to stderr. `nl`: end them with a line break."""
    click.echo(printable_lines(text), nl=nl, err=err)


def show(text: str) -> None:
    """Print a view whose lines end in a line break: on a terminal with colours, unless NO_COLOR is set, and as narrow
    as the terminal; elsewhere as it is."""
    lines = printable_lines(text.removesuffix("\n"))
    if not sys.stdout.isatty():
        click.echo(lines)
        return
    from ddptrace.render.colours import print_coloured

    print_coloured(lines)


def printable_lines(text: str) -> str:
    """`printable` of each line."""
    return "\n".join(map(printable, text.split("\n")))


def say_json(value: Any) -> None:
    """Print a value as JSON, on one line."""
    say_json_piece(as_json_bytes(value))
    click.echo()


def say_json_piece(piece: bytes) -> None:
    """Print a part of a JSON text. Control characters, which occur only inside strings, are printed as JSON escapes, so
    that a program reads the same text."""
    if not piece.translate(None, PLAIN):  # nothing to escape
        click.echo(piece, nl=False)
        return
    click.echo(escaped(piece.decode(), lambda sign: json.dumps(sign)[1:-1]).encode(), nl=False)


def as_json_bytes(value: Any) -> bytes:
    """Encode a value. A character that UTF-8 cannot hold, as in the name of a folder, becomes a JSON escape."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
