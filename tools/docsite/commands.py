"""The page of commands: every command of `ddptrace` with every option, from click; and the help of `ddptrace.run`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import click

from ddptrace.cli import main
from ddptrace.run.options import command_line

VERBATIM: Final = "\b\n"
"""Stands in click's help before a paragraph that keeps its lines."""


def commands_page() -> str:
    """Write all commands as Markdown, a heading for each."""
    return "\n".join(
        [*_run(), *_commands(main, click.Context(main, info_name="ddptrace", **main.context_settings), "##")]
    )


def _run() -> Iterator[str]:
    """Its arguments are those of a program, so it is no click command."""
    yield f"## python -m ddptrace.run\n\n```text\n{command_line().format_help()}```"


def _commands(group: click.Group, context: click.Context, heading: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f"\n{heading} {inner.command_path}\n"
        yield from _command(command, inner)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, heading + "#")


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"```text\n{' '.join((context.command_path, *command.collect_usage_pieces(context)))}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        verbatim = paragraph.removeprefix(VERBATIM)
        yield f"```text\n{verbatim}\n```\n" if verbatim != paragraph else f"{plain(paragraph)}\n"
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [record for one in options if (record := one.get_help_record(context)) is not None]
    yield "| option | meaning |\n|---|---|"
    yield from (f"| {code(names)} | {plain(meaning)} |" for names, meaning in records)


def code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`"


def plain(text: str) -> str:
    """Text of which Markdown takes nothing for its own signs, but for code between backticks."""
    parts = text.split("`")
    return "`".join(one if n % 2 else _escaped(one) for n, one in enumerate(parts))


def _escaped(text: str) -> str:
    for sign in "\\|*_<[":
        text = text.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return text
