"""Figures as files: SVG, PNG or PDF, drawn by a Chrome or Chromium that needs no screen."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddptrace.errors import DdptraceError
from ddptrace.render.whole_file import whole_file
from ddptrace.schema import run_path

if TYPE_CHECKING:
    import os

    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

FORMATS: Final = ("svg", "png", "pdf")
WIDTH_PX: Final = 1000


def write_images(figures: Mapping[str, Figure], folder: str | os.PathLike[str], format: str = "svg") -> list[Path]:
    """Write each figure to `folder`, as NAME.svg, NAME.png (twice as fine) or NAME.pdf; the paths.

    Raises DdptraceError where kaleido or a browser is missing, or the browser fails.
    """
    if format not in FORMATS:
        raise DdptraceError(f"figures cannot be written as {format!r}: choose one of {', '.join(FORMATS)}")
    kaleido, folder = _kaleido(), run_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{format}" for name in figures]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as drawing:
        drawn = [Path(drawing, path.name) for path in paths]
        wanted = [_wanted(figure, path, format) for figure, path in zip(figures.values(), drawn, strict=True)]
        if wanted:
            _draw(kaleido, wanted)
        for one, path in zip(drawn, paths, strict=True):  # whole or not at all, where kaleido empties a file first
            with whole_file(path) as file:
                file.write(one.read_bytes())
    return paths


def _kaleido() -> Any:
    try:
        importlib.import_module("kaleido.errors")  # which older versions do not have
        return importlib.import_module("kaleido")
    except ModuleNotFoundError:
        raise DdptraceError("pictures need kaleido, version 1 or newer: pip install 'ddptrace[images]'") from None


def _wanted(figure: Figure, path: Path, format: str) -> dict[str, Any]:
    width, scale = figure.layout.width or WIDTH_PX, 2 if format == "png" else 1
    size = {"width": width, "height": figure.layout.height, "scale": scale}
    return {"fig": figure, "path": path, "opts": {"format": format, **size}}


def _draw(kaleido: Any, wanted: list[dict[str, Any]]) -> None:
    """All of them in one browser. Kaleido is asked itself, since plotly has it load MathJax from the network."""
    try:
        kaleido.write_fig_from_object_sync(wanted, cancel_on_error=True, kopts={"mathjax": False})
    except kaleido.errors.ChromeNotFoundError:
        raise DdptraceError(
            "pictures are drawn by Chrome or Chromium, and none was found: install one, or say where in BROWSER_PATH"
        ) from None
    except (RuntimeError, TimeoutError, kaleido.errors.KaleidoError) as error:
        why = next(iter(error.args), "it did not answer in time")
        raise DdptraceError(f"the browser could not draw the pictures: {why}") from error
