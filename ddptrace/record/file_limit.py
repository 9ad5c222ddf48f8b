"""The limit on file sizes of this process, as set by `ulimit -f`.

Writing a larger file fails with an error if SIGXFSZ is ignored, as Python does; else it ends the process.
"""

from __future__ import annotations

import sys


def file_limit() -> int:
    """Return the limit in bytes; `sys.maxsize` if there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
