"""The pages of docs/ are true: their Python runs, their commands end well, their tables are those of the code."""

from __future__ import annotations

import enum
import inspect
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ddptrace import schema
from ddptrace.schema import EVENT_DTYPE, GUARD, READY_DTYPE, SCHEMA_VERSION, Kind
from tests.conftest import need
from tests.documents import DOCS, blocks, commands, leads_somewhere, links, pages, run_command, run_python, table
from tests.launch import torchrun

FORMAT = DOCS / "record-format.md"
NOT_RUN = {"sh": 5}
"""Blocks that cannot be run here: they install, or need a collector, a cluster, files or a script of yours."""
TYPES = {"u1": "u1", "<u2": "u2", "<u4": "u4", "<i8": "i8"}
PICTURE_MAX_NBYTES = 60_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pages are read: `run/` with a profiler window in steps 3 and 4, and `after/`, another run."""
    folder = tmp_path_factory.mktemp("docs")
    torchrun("ddp.py", folder / "run", "--profile", "--steps", 16)
    torchrun("ddp.py", folder / "after", "--steps", 16)
    return folder


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page.stem == "python":
        need(all(map(find_spec, ("pandas", "polars", "kaleido"))), "pandas, polars and kaleido")
        request.getfixturevalue("chromium")
    monkeypatch.chdir(folder)
    run_python(page, {})


@pytest.mark.parametrize("page", [page for page in pages() if commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_end_well(page: Path, folder: Path, chromium: str) -> None:
    need(find_spec("kaleido"), "kaleido")
    for line in commands(page):
        done = run_command(line, folder)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_nothing_else_stands_between_fences() -> None:
    found = Counter(block.language for page in pages() for block in blocks(page))
    assert found["python"] > 10
    assert {name: n for name, n in found.items() if name not in ("python", "console", "text")} == NOT_RUN
    assert all(line.startswith("$ ") for page in pages() for block in blocks(page) if block.language == "console"
               for line in block.text.splitlines())  # fmt: skip


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_link_leads_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if not leads_somewhere(page, link)]


def test_every_page_is_in_the_index() -> None:
    assert {page.name for page in pages()} - {"index.md"} <= set(links(DOCS / "index.md"))


def test_pictures_are_small_and_shown() -> None:
    shown = {link for page in pages() for link in links(page) if link.startswith("pictures/")}
    assert {f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()} == shown
    for name in shown:
        assert (DOCS / name).stat().st_size < PICTURE_MAX_NBYTES
        assert ElementTree.parse(DOCS / name).getroot().tag.endswith("svg")


def test_the_format_page_has_the_schema_s_version_sizes_and_guard() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    assert f"schema version {SCHEMA_VERSION}." in text
    assert f"`{GUARD:#x}`" in text
    assert f"Every record has {schema.RECORD_NBYTES} bytes" in text
    for name in (schema.MANIFEST, schema.META, f"{schema.ANALYSIS}/", schema.rank_folder(0), schema.segment_name(0)):
        assert name in text


@pytest.mark.parametrize(
    ("heading", "dtype"), [("EVENT: all kinds but two", EVENT_DTYPE), ("READY: when gradients were there", READY_DTYPE)]
)
def test_a_shape_is_told_field_by_field(heading: str, dtype: object) -> None:
    fields = []
    for name in dtype.names:  # type: ignore[attr-defined]
        kind, at = dtype.fields[name][:2]  # type: ignore[attr-defined]
        one = TYPES[kind.base.str.replace("|", "")]
        fields.append([f"`{name}`", f"{kind.shape[0]} × {one}" if kind.shape else one, str(at)])
    assert table(FORMAT, heading) == fields


def kinds_told() -> dict[str, tuple[str, str, dict[str, str]]]:
    """Number, version, and meaning by field, of each kind on the page."""
    return {name: (number, since, fields_told(cell)) for number, name, since, cell in table(FORMAT, "Kinds")}


def fields_told(cell: str) -> dict[str, str]:
    found = {}
    for part in cell.split(" · "):
        names = re.match(r"(?:`\w+`(?:, )?)+", part)
        for name in re.findall(r"`(\w+)`", names.group() if names else ""):
            found[name] = part
    return found


def kinds_in_code() -> dict[str, tuple[str, str]]:
    """Version and comment of each member of `schema.Kind`."""
    found: dict[str, tuple[str, list[str]]] = {}
    since, last = "1.0", ""
    for line in inspect.getsource(Kind).splitlines()[2:]:
        code, _, comment = line.partition("#")
        if member := re.match(r"\s+([A-Z_]+) = ", code):
            last = member[1]
            found[last] = (since, [])
        elif told := re.match(r" {4}# Since (\d\.\d)\.", line):
            since = told[1]
            continue
        if last:
            found[last][1].append(comment.strip())
    return {name: (since, " ".join(words)) for name, (since, words) in found.items()}


def fields_said(comment: str) -> dict[str, str]:
    """By field what follows it; nothing for an instant that only the sentence names."""
    parts = re.split(r"(?<![\w`])((?:begin|end|name|flags|thread|[a-g])(?:, (?:end|[a-g]))*)(?=: )", comment)
    said = {name: words for names, words in zip(parts[1::2], parts[2::2], strict=True) for name in names.split(", ")}
    return said | {name: "" for name in re.findall(r"\b(begin|end)\b(?= to|[,;.]|$)", parts[0]) if name not in said}


def test_every_kind_is_told_with_its_number_and_version() -> None:
    told, said = kinds_told(), kinds_in_code()
    assert {name: number for name, (number, *_) in told.items()} == {kind.name: str(int(kind)) for kind in Kind}
    assert {name: since for name, (_, since, _) in told.items()} == {name: since for name, (since, _) in said.items()}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.NONE, Kind.STRING, Kind.READY)])
def test_a_kind_is_told_field_by_field_in_the_schema_s_units(kind: Kind) -> None:
    fields, (_, comment) = kinds_told()[kind.name][2], kinds_in_code()[kind.name]
    said = fields_said(comment)
    assert set(said) <= set(fields)
    assert all(re.search(rf"\b{name}\b", comment) for name in fields)
    for name, words in said.items():
        for unit in ("ns", "bytes"):
            if re.search(rf"\b{unit}\b", words):
                assert re.search(rf"\b{unit}\b", fields[name]), f"{name}: {fields[name]}"
    assert all("ns" in fields[name] for name in ("begin", "end") if name in fields)


def test_flags_are_told_with_their_values() -> None:
    told = dict(table(FORMAT, "What flags say"))
    for name in ("CallFlag", "Phase", "StepEnd", "Origin", "RpcOp", "RpcFlag"):
        members: type[enum.IntEnum] = getattr(schema, name)
        assert told[name] == ", ".join(f"{int(one)} {one.name}" for one in members)
