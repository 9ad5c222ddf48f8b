"""Trainings of `programs/exported.py`, exported beside as the environment asks, and what should have arrived."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddptrace.analysis.result import Result
from ddptrace.telemetry.rows import of_result
from ddptrace.telemetry.spans.trees import Node, trees
from tests.launch import PROGRAMS, environment, server

RANKS = 2
STEPS = 24


@dataclass(frozen=True)
class Trained:
    """How it left its trace, by rank."""

    run: Path
    told: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return float(max(one["left_s"] for one in self.told.values()))

    @property
    def warnings(self) -> list[str]:
        return [text for one in self.told.values() for text in one["warnings"]]

    @property
    def log(self) -> str:
        return (self.run / "export.log").read_text()


def asking(url: str, protocol: str, **more: str) -> dict[str, str]:
    said = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    bare = {name: value for name, value in environment().items() if not name.startswith("OTEL_")}
    return bare | said | {f"OTEL_{name}": value for name, value in more.items()}


def train(folder: Path, environ: dict[str, str], *how: str) -> Trained:
    argv = [str(PROGRAMS / "exported.py"), str(folder / "run"), str(folder), *how]
    well, said = server().run(argv, RANKS, environ, 120)
    assert well, said
    return Trained(folder / "run", {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)})


def export(run: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in environment().items() if not name.startswith("OTEL_")}
    argv = [sys.executable, "-m", "ddptrace", "export", str(run), *map(str, arguments)]
    return subprocess.run(argv, env=bare, capture_output=True, text=True, timeout=120, check=False)


def wait_until(met: Callable[[], object], patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while not met() and time.monotonic() < until:
        time.sleep(0.05)
    assert met()


def companions(run: Path) -> list[int]:
    """Processes that export this run, by what they were started with."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            argv = (process / "cmdline").read_bytes().split(b"\0")
            if str(run).encode() in argv and any(b"telemetry.companion.process" in word for word in argv):
                found.append(int(process.name))
    return found


def expected(result: Result) -> list[tuple[int, Node, Node | None]]:
    """Every span that the tables have, with its trace's step and its parent."""
    found = []
    for rows in of_result(result):
        for tree in trees(rows):
            todo: list[tuple[Node, Node | None]] = [(root, None) for root in tree.roots]
            for node, parent in todo:  # grows as it goes
                found.append((-1 if tree.step is None else tree.step, node, parent))
                todo.extend((child, node) for child in node.children)
    return found
