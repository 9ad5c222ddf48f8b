"""Modules that leave a mark when they are imported, for a folder from which nothing should be imported."""

from __future__ import annotations

from pathlib import Path

NAMES = (
    "argparse", "ddptrace", "joblib", "json", "logging", "multiprocessing", "pickle", "runpy", "signal", "socket",
    "tempfile", "threading", "torch", "traceback",
)  # fmt: skip
"""What Python, ddptrace and joblib import first, or soon."""


def plant(folder: Path) -> Path:
    """Fill a new folder with them, and return the file that each writes its name to."""
    folder.mkdir()
    mark = folder / "imported"
    for name in NAMES:
        folder.joinpath(f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name}\\n')\nraise ImportError\n")
    return mark
