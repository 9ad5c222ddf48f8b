"""What telemetry could not do is said once, and never ends the training that it is said to."""

from __future__ import annotations

import sys
import warnings

from ddptrace.errors import printable


def warn(message: str, stacklevel: int) -> None:
    """Warn of it. `stacklevel`: as in `warnings.warn`, counted from the caller."""
    message = printable(message)
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:  # the program turns warnings into errors
        sys.stderr.write(f"{message}\n")
