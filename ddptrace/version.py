"""The version of this package, for its own modules: importing `ddptrace` for it would close a circle."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
