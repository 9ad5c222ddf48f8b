"""The committed dashboards as Grafana reads them, with variables filled in as it does, and the rules."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

DASHBOARDS = ROOT / "dashboards"
NAMES = ("overview", "buckets", "ranks", "compare")


@dataclass(frozen=True, slots=True)
class Query:
    """One target of one panel. `is_instant`: asked once, at the end of the dashboard's time."""

    dashboard: str
    panel: str
    letter: str
    expression: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.letter}"


@cache
def loaded(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DASHBOARDS / "grafana" / f"{name}.json").read_text(encoding="utf-8"))
    return told


def panels(name: str) -> Iterator[dict[str, Any]]:
    """Rows left out."""
    yield from (panel for panel in loaded(name)["panels"] if panel["type"] != "row")


def queries() -> Iterator[Query]:
    for name in NAMES:
        for panel in panels(name):
            for target in panel["targets"]:
                instant = bool(target.get("instant"))
                yield Query(name, panel["title"], target["refId"], target["expr"], instant)


def expression(dashboard: str, panel: str, letter: str = "A", *, nth: int = 0) -> str:
    """Of the nth panel of this title."""
    found = [
        one.expression for one in queries() if (one.dashboard, one.panel, one.letter) == (dashboard, panel, letter)
    ]
    return found[nth]


def filled(expression: str, variables: Mapping[str, str]) -> str:
    """Longest names first: one may begin another."""
    for name in sorted(variables, key=len, reverse=True):
        expression = expression.replace(f"${{{name}}}", variables[name]).replace(f"${name}", variables[name])
    return expression


def rules() -> Iterator[dict[str, Any]]:
    """Those that record and those that alert, in their order."""
    content = yaml.safe_load(path("prometheus", "rules.yml").read_text(encoding="utf-8"))
    return itertools.chain.from_iterable(group["rules"] for group in content["groups"])


def path(*parts: str) -> Path:
    return DASHBOARDS.joinpath(*parts)
