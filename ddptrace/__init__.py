"""ddptrace: where the step time of distributed PyTorch training goes, bucket by bucket.

    with ddptrace.trace("run/"):
        train()

    result = ddptrace.analyze("run/")

Importing this module brings in neither torch nor anything else that is heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptrace.errors import DdptraceError, RunDirectoryError, TraceStateError, needing_torch
from ddptrace.version import __version__

if TYPE_CHECKING:
    from ddptrace import figures
    from ddptrace.analysis.diff.tables import Diff
    from ddptrace.analysis.result import Result
    from ddptrace.analysis.whatif.tables import Setting
    from ddptrace.analyzer import analyze
    from ddptrace.differ import diff
    from ddptrace.predictor import advise, whatif
    from ddptrace.reducer import BucketedDataParallel
    from ddptrace.trace_options import Keep, when_slow
    from ddptrace.tracing import trace

__all__ = [
    "BucketedDataParallel",
    "DdptraceError",
    "Diff",
    "Keep",
    "Result",
    "RunDirectoryError",
    "Setting",
    "TraceStateError",
    "__version__",
    "advise",
    "analyze",
    "diff",
    "figures",
    "trace",
    "whatif",
    "when_slow",
]

_HOMES = {
    "BucketedDataParallel": "ddptrace.reducer",
    "Diff": "ddptrace.analysis.diff.tables",
    "Keep": "ddptrace.trace_options",
    "Result": "ddptrace.analysis.result",
    "Setting": "ddptrace.analysis.whatif.tables",
    "advise": "ddptrace.predictor",
    "analyze": "ddptrace.analyzer",
    "diff": "ddptrace.differ",
    "trace": "ddptrace.tracing",
    "whatif": "ddptrace.predictor",
    "when_slow": "ddptrace.trace_options",
}


def __dir__() -> list[str]:
    """List the public names, also those that are not imported yet, for completion in a notebook."""
    return list(__all__)


def __getattr__(name: str) -> object:
    import importlib

    if name == "figures":  # the module itself
        return importlib.import_module("ddptrace.figures")
    if name not in _HOMES:
        raise AttributeError(f"module 'ddptrace' has no attribute {name!r}")
    with needing_torch(f"ddptrace.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)
