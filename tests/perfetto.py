"""The real Perfetto trace processor, asked by SQL, in a process of its own: a NaN makes its importer loop for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import SHARED, need

TOOLS = SHARED / "tools" / "perfetto"
PATIENCE_S = 120
ASK = """
import json, sys
from trace_processor import TraceProcessor
with TraceProcessor(open(sys.argv[1], "rb").read()) as tp:
    answers = {name: [list(row) for row in tp.query(sql)] for name, sql in json.loads(sys.argv[2]).items()}
    print(json.dumps({"errors": [list(error) for error in tp.import_errors()], "answers": answers}))
"""


def ask(trace: Path, **queries: str) -> dict[str, list[list[Any]]]:
    """Rows of each query. Fails where Perfetto did not accept every event."""
    said = processor("-c", ASK, str(trace), json.dumps(queries))
    told = json.loads(said.splitlines()[-1])
    assert told["errors"] == []
    return dict(told["answers"])


def check(trace: Path, slices: int, flows: int) -> str:
    """The project's own check of a trace: no import error, and at least so many slices and flows."""
    return processor(str(TOOLS / "check_trace.py"), str(trace), str(slices), str(flows))


def processor(*arguments: str) -> str:
    need((TOOLS / "trace_processor.py").exists(), "Perfetto's trace processor beside the project")
    env = os.environ | {"PYTHONPATH": str(TOOLS)}
    done = subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
