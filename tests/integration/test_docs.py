"""README and the pages of docs/ are true: their Python runs, their commands end well, their tables match the code."""

from __future__ import annotations

import ast
import contextlib
import enum
import inspect
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
import yaml

import ddptrace
from ddptrace import schema
from ddptrace.cli import main
from ddptrace.run.options import read_command
from ddptrace.schema import EVENT_DTYPE, GUARD, READY_DTYPE, SCHEMA_VERSION, Kind
from tests.conftest import need
from tests.documents import (
    DOCS,
    EXAMPLES,
    README,
    blocks,
    commands,
    is_read,
    leads_somewhere,
    linked_pages,
    links,
    mentioned,
    name_of,
    pages,
    read,
    records_by_itself,
    table,
)
from tests.launch import ROOT, torchrun

FORMAT = DOCS / "reference" / "record-format.md"
TUTORIAL = DOCS / "tutorial.md"
README_MAX_LINES = 180
NOT_RUN = {"sh": 45, "py": 10, "yaml": 2}
"""Blocks that cannot be run here: they install, or need a collector, a cluster, a library, files or your script."""
TYPES = {"u1": "u1", "<u2": "u2", "<u4": "u4", "<i8": "i8"}
PICTURE_MAX_NBYTES = 60_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run/` with a profiler window in steps 3 and 4, and `after/`, another run."""
    folder = tmp_path_factory.mktemp("docs")
    torchrun("ddp.py", folder / "run", "--profile", "--steps", 16)
    torchrun("ddp.py", folder / "after", "--steps", 16)
    return folder


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What the pages take for granted: a training, on one rank here, and its parts."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    module = torch.nn.Linear(64, 64)

    def train() -> None:
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield {
        "train": train, "module": module, "batches": range(2), "update": lambda batch: None,
        "name": "worker0", "rank": 0, "world_size": 1,
    }  # fmt: skip
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:You are using a Backend")  # torch.distributed.rpc says so of itself
@pytest.mark.parametrize("page", [page for page in pages() if is_read(page) and page != TUTORIAL], ids=name_of)
def test_a_page_is_read_from_top_to_bottom(
    page: Path, recorded: Path, tmp_path: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if page.stem == "python":
        need(
            all(map(find_spec, ("pandas", "polars", "duckdb", "kaleido"))),
            "pandas, polars, duckdb and kaleido (pip install pandas polars duckdb kaleido)",
        )
        request.getfixturevalue("chromium")
    if not records_by_itself(page):
        shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    read(page, tmp_path, names)


@pytest.mark.alone  # two runs are compared
def test_the_tutorial_finds_what_the_script_plants(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    read(TUTORIAL, tmp_path, {})
    before, after = (ddptrace.analyze(tmp_path / "run" / name) for name in ("before", "after"))
    worst = before.suspects[0]
    assert (worst.rank, worst.phase, worst.cause) == (1, "data", "data")
    # on a fast machine two workers do not quite keep up with the ranks
    assert all(4 * one.cost_ns < worst.cost_ns for one in after.suspects if one.phase == "data")
    assert ddptrace.diff(tmp_path / "run/before", tmp_path / "run/after").step.change_ns < -20e6


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_command_of_a_page_is_understood(page: Path, tmp_path: Path) -> None:
    for words in commands(page):
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # a variable of the environment before the command
            del words[0]
        if words[:1] == ["ddptrace"]:
            parse(words[1:])
        elif "ddptrace.run" in words:
            read_command(words[words.index("ddptrace.run") + 1 :], {}, tmp_path)
        elif words[-1:] != ["ddptrace"] and "ddptrace" in words:  # python -m ddptrace, not pip install ddptrace
            parse(words[words.index("ddptrace") + 1 :])


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_command_between_backticks_has_these_options(page: Path) -> None:
    for text in mentioned(page):
        command, rest = command_of(text.split()[1:])
        known = [name for option in command.params for name in option.opts] + ["--help"]
        assert set(re.findall(r"(?<!\S)--[a-z-]+", " ".join(rest))) <= set(known), text


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The innermost command that the words name, and the words behind it."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].isupper() and words[0] != "…":
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, f"there is no command {words[0]}"
        command, words = inner, words[1:]
    return command, words


def parse(words: list[str]) -> None:
    command, rest = command_of(words)
    try:
        with contextlib.closing(command.make_context("ddptrace", rest)):
            pass
    except click.UsageError as error:
        pytest.fail(f"ddptrace {' '.join(words)}: {error.format_message()}")


def test_nothing_else_stands_between_fences() -> None:
    found = Counter(block.language for page in pages() for block in blocks(page))
    assert found["python"] > 25 and found["console"] > 12
    assert {name: n for name, n in found.items() if name not in ("python", "console", "text")} == NOT_RUN
    lines = [
        line for page in pages() for one in blocks(page) if one.language == "console" for line in one.text.splitlines()
    ]
    assert all(line.startswith("$ ") for line in lines)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_what_is_not_run_is_at_least_well_formed(page: Path) -> None:
    for block in blocks(page):
        if block.language == "py":
            ast.parse(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "sh":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)


@pytest.mark.parametrize("page", linked_pages(), ids=name_of)
def test_a_link_leads_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if not leads_somewhere(page, link)]


def test_every_page_is_in_the_index_and_in_the_site_s_list() -> None:
    inside = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    listed = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert inside <= set(links(DOCS / "index.md"))
    assert all(f": {page}\n" in listed for page in inside)


def test_every_path_that_contributors_are_sent_to_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = [path for path in re.findall(r"`([\w./*-]+)`", text) if path.endswith(("/", ".py", ".md", ".yml", ".txt"))]
    assert len(paths) > 40
    named = [path for path in paths if "NAME" not in path and path != ".venv/"]
    assert not [path for path in named if not any(any(root.glob(path)) for root in (ROOT, ROOT / "ddptrace"))]


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_MAX_LINES


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} <= set(links(EXAMPLES / "README.md"))


def test_pictures_are_small_and_shown() -> None:
    shown = {link for page in DOCS.glob("*.md") for link in links(page) if link.startswith("pictures/")}
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
    ("heading", "dtype"), [("EVENT: all kinds but two", EVENT_DTYPE), ("READY: when gradients were ready", READY_DTYPE)]
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
    told = dict(table(FORMAT, "Values of flags"))
    for name in ("CallFlag", "Phase", "StepEnd", "Origin", "RpcOp", "RpcFlag"):
        members: type[enum.IntEnum] = getattr(schema, name)
        assert told[name] == ", ".join(f"{int(one)} {one.name}" for one in members)
