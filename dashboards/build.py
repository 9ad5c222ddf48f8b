"""Writes what is loaded out of what is written here: `python -m dashboards.build`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.buckets import buckets
from dashboards.compare import compare
from dashboards.overview import overview
from dashboards.perfetto_commands import macros, startup
from dashboards.ranks import ranks

HERE: Final = Path(__file__).resolve().parent
GRAFANA: Final = {"overview": overview, "buckets": buckets, "ranks": ranks, "compare": compare}


def made() -> Iterator[tuple[Path, str]]:
    """Each file and the text that belongs in it."""
    for name, dashboard in GRAFANA.items():
        yield HERE / "grafana" / f"{name}.json", _grafana(dashboard().build())
    yield HERE / "perfetto" / "startup.json", _text(startup())
    yield HERE / "perfetto" / "macros.json", _text(macros())


def _grafana(dashboard: Any) -> str:
    """Panels are numbered, since links to one go by its number."""
    told: dict[str, Any] = json.loads(JSONEncoder().encode(dashboard))
    for number, panel in enumerate(told["panels"], start=1):
        panel["id"] = number
    return _text(told)


def _text(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    for path, text in made():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
