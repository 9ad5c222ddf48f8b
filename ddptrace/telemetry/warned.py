"""Warns of what telemetry could not do, without ever ending the training."""

from __future__ import annotations

import sys
import warnings

from ddptrace.errors import printable


def warn(message: str, stacklevel: int) -> None:
    """Warn. `stacklevel` is that of `warnings.warn`, counted from the caller."""
    message = printable(message)
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:  # the program turns warnings into errors
        sys.stderr.write(f"{message}\n")
