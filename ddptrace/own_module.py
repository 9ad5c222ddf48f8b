"""Starts a module of ours in a new Python process with this process's module path.

`python -m` would put the current directory first, and would run a `json.py` from there.
"""

from __future__ import annotations

import os
import sys
from typing import Final

BOOT: Final = (
    f"import sys; sys.path[:] = sys.argv.pop(1).split({os.pathsep!r}); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_module(name: str) -> list[str]:
    """Return the start of a command that runs module `name` as `python -m` does. The module's arguments follow it."""
    return [sys.executable, "-c", BOOT, os.pathsep.join(map(str, sys.path)), name]
