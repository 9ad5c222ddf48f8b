"""`make test-versions`: the tests of recording and analysis with several versions of Python and torch, as a table.

Each pair has a virtual environment below run/versions/. A Python that is not installed is left out, and the table says
so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAIRS: Final = (
    ("3.11", "2.4"), ("3.11", "2.13"), ("3.12", "2.6"), ("3.12", "2.8"), ("3.13", "2.11"), ("3.13", "2.15"),
    ("3.14", "2.13"), ("3.14", "2.15"),
)  # fmt: skip
"""The oldest and the newest torch, and every Python."""
NUMPY_1: Final = ("2.4",)
"""Versions of torch that were built for NumPy 1."""
TESTS: Final = (
    "tests/integration/test_steps_are_found.py",
    "tests/integration/test_training_is_unchanged.py",
    "tests/integration/test_completions.py",
    "tests/integration/test_merged_ranks.py",
    "tests/unit/test_labels.py",
)
FOLDER: Final = Path("run/versions")
NOTE_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Row:
    """How the tests ended with one pair. `note`: pytest's last line, or why there was nothing to run."""

    python: str
    torch: str
    passed: bool | None
    note: str


def main() -> None:
    """Test every pair, or those that are named, as in `python -m tools.versions 3.12/2.8`."""
    asked = sys.argv[1:]
    rows = [tested(*pair) for pair in PAIRS if not asked or "/".join(pair) in asked]
    text = table(rows)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "table.md").write_text(text, encoding="utf-8")
    print(text, end="")
    sys.exit(any(row.passed is False for row in rows))


def tested(python: str, torch: str) -> Row:
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        return Row(python, torch, None, f"python{python} is not installed")
    venv = FOLDER / f"python-{python}-torch-{torch}"
    try:
        _run(interpreter, "-m", "venv", str(venv))
        numpy = ["numpy<2"] if torch in NUMPY_1 else []
        _run(str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "-e", ".[dev]", f"torch=={torch}.*", *numpy)
    except subprocess.CalledProcessError as error:
        return Row(python, torch, None, f"cannot be installed: {_last_line(error.stderr)}")
    done = subprocess.run(
        [str(venv / "bin/python"), "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-m", "not alone", *TESTS],
        capture_output=True,
        text=True,
        check=False,
    )
    return Row(python, torch, done.returncode == 0, _last_line(done.stdout or done.stderr))


def table(rows: list[Row]) -> str:
    words = {True: "passes", False: "**fails**", None: "not run"}
    lines = [f"| {row.python} | {row.torch} | {words[row.passed]} | {row.note} |" for row in rows]
    return "\n".join(("| Python | torch | | |", "|---|---|---|---|", *lines, ""))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _last_line(said: str) -> str:
    lines = said.strip().splitlines() or [""]
    return lines[-1].replace("|", "/")[:NOTE_MAX]


if __name__ == "__main__":
    main()
