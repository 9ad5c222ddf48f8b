"""The pages of the site that are made from the code leave nothing out."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import click
import pytest

import ddptrace
from ddptrace.cli import main
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS
from tests.documents import DOCS
from tools.docsite import outside, telemetry
from tools.docsite.columns import columns_of, meanings_of, type_name, unit_of
from tools.docsite.commands import commands_page, plain
from tools.docsite.tables import ANSWERS, row_types, tables_page

ROWS = [row_type for answer in ANSWERS for row_type in row_types(answer)]
PUBLIC = [name for name in ddptrace.__all__ if name not in ("__version__", "figures")]


@pytest.mark.parametrize("row_type", ROWS, ids=lambda row_type: f"{row_type.__module__}.{row_type.__name__}")
def test_every_column_has_a_meaning(row_type: type[Any]) -> None:
    assert not [column.name for column in columns_of(row_type) if not column.meaning]


def test_every_table_of_a_run_is_on_the_page() -> None:
    page = tables_page()
    tables = [field.name for field in dataclasses.fields(ddptrace.Result) if "Table[" in str(field.type)]
    assert len(tables) > 20
    assert not [name for name in tables if not re.search(rf"^### `{name}`: \w+ \{{ #", page, re.MULTILINE)]


def test_links_within_the_page_of_tables_lead_to_a_heading_and_headings_differ() -> None:
    page = tables_page()
    anchors = re.findall(r"\{ #([a-z-]+) \}", page)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\(#([a-z-]+)\)", page)) <= set(anchors)


@dataclasses.dataclass
class Row:
    """A row."""

    first_ns: int  # how long; as long
    #   as it takes
    name: str | None = None
    pair: tuple[int, int] | None = None  # of "a|b"


def test_a_meaning_is_the_comment_and_its_next_lines() -> None:
    assert meanings_of(Row) == {"first_ns": "how long; as long as it takes", "pair": 'of "a|b"'}
    assert [type_name(column.hint) for column in columns_of(Row)] == ["int", "str or None", "(int, int) or None"]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("begin_at_ns", "ns since `zero_unix_ns`"), ("wall_ns", "ns"), ("ns", "ns"), ("sent_nbytes", "bytes"),
        ("busbw_bytes_per_s", "bytes/s"), ("overlap_ratio", "ratio, 0 to 1"), ("change_ratio", "ratio"), ("runs", ""),
        ("columns", ""),
    ],
)  # fmt: skip
def test_a_unit_is_told_by_the_end_of_the_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def commands(group: click.Group, path: str) -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[f"{path} {name}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}")
    return found


@pytest.mark.parametrize(("path", "command"), commands(main, "ddptrace").items(), ids=str)
def test_every_command_is_on_the_page_with_every_option(path: str, command: click.Command) -> None:
    section = re.split(rf"^##+ {path}$", commands_page(), flags=re.MULTILINE)[1].split("\n##")[0]
    options = [name for one in command.params if isinstance(one, click.Option) for name in one.opts]
    assert not [name for name in [*options, "--help"] if not re.search(rf"`[^`]*{name}\b", section)]
    assert "\b" not in section


def test_signs_of_markdown_are_plain_text_on_the_page() -> None:
    assert plain("a_b *c* <d> [e] `f_g` h|i") == "a\\_b \\*c\\* &lt;d> \\[e] `f_g` h\\|i"


def test_every_metric_and_attribute_is_on_the_page() -> None:
    metrics, spans = telemetry.metrics(), telemetry.spans()
    assert not [one.name for one in INSTRUMENTS if f"`{one.name}`" not in metrics or one.meaning not in metrics]
    attributes = [one for table in telemetry.SPANS.values() for one in table]
    assert not [one.name for one in attributes if f"| `{one.name}` |" not in spans]


def test_every_public_name_is_on_the_page_of_python() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert not [name for name in [*PUBLIC, "figures"] if f"\n::: ddptrace.{name}\n" not in page]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_describes_every_argument(name: str) -> None:
    thing = getattr(ddptrace, name)
    said = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and "Args:" not in said:
        assert said  # an error, or a row type, whose fields are described where they are declared
        return
    arguments = [one for one in inspect.signature(thing).parameters if one != "self"]
    assert not [one for one in arguments if not re.search(rf"^ +\**{one}: [A-Z`\"]", said, re.MULTILINE)]


@pytest.mark.parametrize("name", ddptrace.figures.__all__)
def test_a_figure_says_what_it_draws(name: str) -> None:
    assert (inspect.getdoc(getattr(ddptrace.figures, name)) or "").startswith(("Draw ", "Write "))


def test_files_outside_of_the_pages_are_shown_where_links_lead() -> None:
    shown = {outside.place(file) for file in outside.outside_files()}
    assert {"readme.md", "examples/README.md", "examples/pictures/report.png", "examples/1_char_gpt.py.md"} <= shown
    text = "[a](../examples/1_char_gpt.py) [b](how-to/python.md#errors) [c](../README.md) [d](https://x.y) [e](#f)"
    linked = outside.relinked(text, "index.md")
    assert (
        linked == "[a](examples/1_char_gpt.py.md) [b](how-to/python.md#errors) [c](readme.md) [d](https://x.y) [e](#f)"
    )
    assert outside.relinked("[a](../docs/limits.md)", "examples/README.md") == "[a](../limits.md)"
