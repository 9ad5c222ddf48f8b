"""A handler for `Accelerator.profile` of Accelerate.

from ddptrace.integrations.accelerate import TraceKwargs

with accelerator.profile(TraceKwargs("run/")):
    train()
"""

from __future__ import annotations

import os
from typing import Any

from accelerate.utils import ProfileKwargs

import ddptrace


class TraceKwargs(ProfileKwargs):
    """Have `Accelerator.profile` record what runs inside it as `ddptrace.trace` does, on every rank.

    Args:
        path: The run directory. With several hosts, all must see this directory.
        options: Those of `ddptrace.trace`, such as `profile` and `overwrite`.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._path = path
        self._options = options

    def build(self) -> ddptrace.trace:
        """Make the trace, which `Accelerator.profile` enters and leaves.

        Raises:
            RunDirectoryError: The path is not one.
            TraceStateError: An option does not fit.
        """
        return ddptrace.trace(self._path, **self._options)
