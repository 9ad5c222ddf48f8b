"""How a program of the sweep runs."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "plain"
ALWAYS_ON: Final = "always-on"
PROFILED: Final = "profiled"
TRACED: Final = (ALWAYS_ON, PROFILED)
