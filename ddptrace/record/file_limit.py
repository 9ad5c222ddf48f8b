"""How large a file this process may write, as `ulimit -f` sets it.

A larger one costs an error where SIGXFSZ is ignored, as Python does at its start, and else the process.
"""

from __future__ import annotations

import sys


def file_limit() -> int:
    """In bytes; of the largest that there can be where there is no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
