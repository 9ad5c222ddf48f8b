"""Which room may import what, made executable: the table of the design, an `ast` walk against it, and real imports."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ddptrace"
EVERYWHERE = (
    "ddptrace.errors",
    "ddptrace.schema",
    "ddptrace.trace_options",
    "ddptrace.ops",
    "ddptrace.rows",
    "ddptrace.findings",
    "ddptrace.units",
    "ddptrace.version",
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one room may import. A name stands for itself and everything under it."""

    rooms: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()  # packages and rooms that only a function, or a type checker, may import


def ours(*rooms: str) -> tuple[str, ...]:
    return tuple(f"ddptrace.{room}" for room in rooms)


ALLOWED = {
    "__init__": Row(inside=ours("analysis", "analyzer", "differ", "figures", "predictor", "tracing", "reducer")),
    "__main__": Row(ours("cli")),
    "errors": Row(),
    "findings": Row(),
    "trace_options": Row(),
    "ops": Row(),
    "rows": Row(packages=("msgspec",)),
    "units": Row(),
    "schema": Row(packages=("numpy",)),
    "version": Row(),
    # where load and analysis meet, and where ranks are shared out to processes
    "analyzer": Row(ours("load", "analysis", "engine")),
    "differ": Row(ours("analyzer", "load"), inside=ours("analysis")),  # the same, of several runs
    "predictor": Row(ours("analyzer", "engine", "load"), inside=ours("analysis")),  # the same, of what was not recorded
    "trim": Row(ours("analyzer", "load", "render.whole_file"), ("numpy", "msgspec")),  # writes shorter profiler files
    "engine": Row(inside=("joblib", "distributed")),
    "tracing": Row(inside=(*ours("capture", "telemetry"), "opentelemetry")),
    # nothing before the program imports torch by itself: what it sets in the environment first would come too late
    "run": Row(inside=(*ours("capture", "record", "telemetry", "tracing"), "torch")),
    "own_module": Row(),  # starts one of them in a process of its own
    "dynamo": Row(inside=("torch",)),  # both that run inside a compiled program need it, and neither may know the other
    "reducer": Row(ours("dynamo"), ("torch",)),
    "capture": Row(ours("record", "reducer", "dynamo", "own_module"), ("torch",)),
    "record": Row(packages=("numpy",)),
    "load": Row(
        ours("record"), ("numpy", "msgspec", "isal"), inside=("perfetto", "google", "backports", "compression")
    ),  # record: its reader, where the layout of a segment is known
    "analysis": Row(
        ours("load.tables", "load.diagnosis.tables"), ("numpy",), inside=("pandas", "polars", "pyarrow", "hta")
    ),
    # both telemetry and a screen that watches a job read a run that grows, and the screen wants no OpenTelemetry
    "live": Row(ours("record", "load", "analysis"), ("numpy",)),
    # load and analysis: the tables, which telemetry's spans are made from, are built in one place only
    # what its extra brings is imported by those of its modules only that need it: test_telemetry_environment.py
    "telemetry": Row(
        ours("record", "load", "analysis", "live"),
        ("numpy", "opentelemetry", "grpc", "google", "requests", "urllib3", "prometheus_client"),
    ),
    "render": Row(ours("analysis", "load.tables"), ("numpy", "isal"), inside=("plotly", "rich")),
    # the package itself: training is measured under `trace`, as users call it. engine: the number of cores
    "bench": Row(
        ours("__init__", "reducer", "analysis", "render", "engine", "own_module"),
        ("torch",),
        inside=(*ours("capture"), "msgspec", "opentelemetry"),
    ),
    "figures": Row(ours("analysis", "render"), inside=("plotly", "kaleido")),
    # each file imports the library that it is for; one that is not installed cannot be imported
    "integrations": Row(
        ours("__init__", "analysis", "differ", "render"),
        ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "mlflow", "wandb", "pytest"),
    ),
    "view": Row(),  # serves files; the UI's wheel is looked for and not imported
    "cli": Row(
        packages=("click",),
        inside=(
            *ours(
                "analyzer",
                "capture",  # its compiled part is made by a command, and by nothing else
                "differ",
                "load",
                "analysis",
                "live",
                "render",
                "telemetry",
                "bench",
                "tracing",
                "run",
                "view",
                "figures",
                "predictor",
                "trim",
            ),
            "msgspec",
            "pyarrow",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name. `from a import b` may mean the module a.b or a name in a: `names` holds both."""

    where: str
    names: tuple[str, ...]
    deferred: bool  # inside a function, or under TYPE_CHECKING


def rooms() -> list[str]:
    """Every folder and single module of the package that exists."""
    found = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return sorted(path.stem for path in found)


def files(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


def imports(file: Path, package: Path = PACKAGE) -> Iterator[Import]:
    yield from _imports_under(ast.parse(file.read_text(encoding="utf-8")), file.relative_to(package.parent), False)


def _imports_under(node: ast.AST, file: Path, deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(f"{file}:{child.lineno}", (alias.name,), deferred)
        elif isinstance(child, ast.ImportFrom):
            module = _absolute(child, file)
            for alias in child.names:
                yield Import(f"{file}:{child.lineno}", (module, f"{module}.{alias.name}"), deferred)
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _only_for_types(child)
            yield from _imports_under(child, file, deferred or later)


def _absolute(node: ast.ImportFrom, file: Path) -> str:
    if not node.level:
        return node.module or ""
    package = file.with_suffix("").parts[: -node.level]
    return ".".join([*package, node.module] if node.module else package)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_allowed(found: Import, room: str) -> bool:
    row = ALLOWED[room]
    allowed = (*row.rooms, *row.packages, *EVERYWHERE, f"ddptrace.{room}", *(row.inside if found.deferred else ()))
    return any(_is_under(name, allowed) for name in found.names)


def _is_under(name: str, allowed: tuple[str, ...]) -> bool:
    if name.split(".")[0] in sys.stdlib_module_names or (name == "ddptrace" and "ddptrace.__init__" in allowed):
        return True
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


def reachable(room: str) -> set[str]:
    """The room and all that it may bring with it when it is imported."""
    met, ahead = {room}, [room]
    while ahead:
        named = {name.split(".")[1] for name in (*ALLOWED[ahead.pop()].rooms, *EVERYWHERE)}
        ahead += named - met
        met |= named
    return met & set(rooms())


def foreign_modules(room: str) -> set[str]:
    """The modules of other projects, out of the rows' packages, that importing a room may import."""
    reached = reachable(room)
    packages = {package for name in reached for package in ALLOWED[name].packages}
    found = [one for name in reached for file in files(name) for one in imports(file) if not one.deferred]
    return {one.names[0] for one in found if one.names[0].split(".")[0] in packages}


@functools.cache
def modules_after(*imported: str) -> frozenset[str]:
    """Top-level names in `sys.modules` of a fresh process that imported these."""
    program = f"import sys, importlib\nfor name in {imported!r}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.split())


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def third_party(modules: frozenset[str]) -> set[str]:
    return {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"ddptrace"}


KNOWN = [room for room in rooms() if room in ALLOWED]


def test_every_room_has_a_row() -> None:
    unknown = [room for room in rooms() if room not in ALLOWED]
    assert not unknown, f"say in ALLOWED (tests/test_layers.py) what the new {', '.join(unknown)} may import, and why"


@pytest.mark.parametrize("room", KNOWN)
def test_a_room_imports_only_what_its_row_allows(room: str) -> None:
    found = [one for file in files(room) for one in imports(file)]
    wrong = [f"{one.where} imports {one.names[-1]}" for one in found if not is_allowed(one, room)]
    assert not wrong, f"not in the row of {room}: {'; '.join(wrong)}"


UNIMPORTED = ("__main__", "integrations")
"""Importing the first runs it, and what the second imports may not be installed."""


@pytest.mark.parametrize("room", [room for room in KNOWN if room not in UNIMPORTED])
def test_importing_a_room_brings_no_package_outside_its_row(room: str) -> None:
    # GIVEN what the packages of the row bring with them
    brought = third_party(modules_after(*sorted(foreign_modules(room))))
    # WHEN every module of the room is imported
    loaded = modules_after(*map(module_name, files(room)))
    # THEN nothing else came
    assert third_party(loaded) - brought == set()


def test_importing_ddptrace_itself_brings_no_package_at_all() -> None:
    assert third_party(modules_after("ddptrace")) - third_party(modules_after("sys")) == set()


def test_what_reads_profiler_files_is_not_imported_before_there_is_one() -> None:
    loaded = modules_after("ddptrace.predictor", "ddptrace.analysis.analyze", "ddptrace.load.run")
    assert {"ddptrace.load.kineto", "ddptrace.load.foreign", "ddptrace.load.windows"}.isdisjoint(loaded)


def test_capture_and_analysis_never_meet() -> None:
    assert "ddptrace.analysis" not in modules_after(*map(module_name, files("capture")))
    assert "ddptrace.capture" not in modules_after(*map(module_name, files("analysis")), "ddptrace.analyzer")


SUBJECTS = ("analysis", "render", "load", "capture", "reducer", "telemetry")
"""Rooms that are divided by subject, or small enough not to be."""
STOREYS = ("load", "capture", "reducer")
"""Rooms whose inner rooms stand above each other: no two of them import each other, whatever their files do."""
FILES_MAX = 25
OUTPUTS = {"trace", "watch"}
"""Rooms of render for an output that shows many subjects."""


def modules_of(room: str) -> dict[str, Path]:
    return {module_name(file): file for file in files(room)}


def needs_of(room: str) -> dict[str, set[str]]:
    """For each module the modules of the same room that it imports, also inside functions."""
    modules = modules_of(room)
    return {
        name: {other for found in imports(file) for other in found.names if other in modules and other != name}
        for name, file in modules.items()
    }


def circles(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left once names that need no other name are taken away, again and again: those that need themselves."""
    while free := {name for name, others in needs.items() if not others}:
        needs = {name: others - free for name, others in needs.items() if name not in free}
    return needs


def inner_room(module: str) -> str:
    """The room of a module inside its outer room (`ddptrace.capture.rpc`), or the module itself where it has none."""
    return ".".join(module.split(".")[:3])


@pytest.mark.parametrize("room", [*SUBJECTS, "cli", "record", "live", "run", "view", "figures", "integrations"])
def test_no_module_imports_one_that_imports_it_however_late(room: str) -> None:
    assert circles(needs_of(room)) == {}


@pytest.mark.parametrize("room", STOREYS)
def test_no_inner_room_imports_one_that_imports_it_however_late(room: str) -> None:
    needs: dict[str, set[str]] = {}
    for module, others in needs_of(room).items():
        inner = inner_room(module)
        needs[inner] = needs.get(inner, set()) | {inner_room(other) for other in others} - {inner}
    del needs[f"ddptrace.{room}"]  # its face may import from any of them, and `from ddptrace.load import run` names it
    assert circles({inner: others - {f"ddptrace.{room}"} for inner, others in needs.items()}) == {}


@pytest.mark.parametrize("room", SUBJECTS)
def test_no_room_has_more_files_than_can_be_looked_over(room: str) -> None:
    folders = [folder for folder in (PACKAGE / room).rglob("*") if (folder / "__init__.py").is_file()]
    sizes = {str(folder): len(list(folder.glob("*.py"))) - 1 for folder in [PACKAGE / room, *folders]}
    assert {folder: size for folder, size in sizes.items() if size > FILES_MAX} == {}


@pytest.mark.parametrize("room", SUBJECTS)
def test_each_room_says_what_comes_in_and_what_goes_out(room: str) -> None:
    docstrings = {
        str(init): ast.get_docstring(ast.parse(init.read_text())) or ""
        for init in (PACKAGE / room).rglob("__init__.py")
    }
    assert [init for init, said in docstrings.items() if not ("\nIn: " in said and " Out: " in said)] == []


def test_rooms_of_render_have_the_names_of_those_of_analysis() -> None:
    subjects = [
        {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")} for room in ("render", "analysis")
    ]
    assert subjects[0] - subjects[1] == OUTPUTS


def test_telemetry_uses_only_public_names_of_opentelemetry() -> None:
    names = [name for file in files("telemetry") for one in imports(file) for name in one.names]
    private = [n for n in names if n.startswith("opentelemetry") and any(p.startswith("_") for p in n.split("."))]
    assert not private


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("analysis", "import torch"),
        ("analysis", "from ddptrace import capture"),
        ("analysis", "from ddptrace.load.run import read_run"),
        ("capture", "from ..analysis import tables"),
        ("capture", "import numpy as np"),
        ("render", "from plotly.offline import get_plotlyjs"),
        ("cli", "import ddptrace.load"),
        ("cli", "def late() -> None:\n    import torch"),
        ("load", "class Held:\n    import pandas"),
        ("bench", "from benchmarks import hosts"),
    ],
)
def test_a_planted_wrong_import_is_found(tmp_path: Path, room: str, line: str) -> None:
    file = tmp_path / "ddptrace" / room / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"import json\nfrom ddptrace.schema import Kind\n{line}\n")
    told = [is_allowed(one, room) for one in imports(file, tmp_path / "ddptrace")]
    assert told == [True, True, False]
