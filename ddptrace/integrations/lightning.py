"""A callback for Lightning that records `Trainer.fit`.

from ddptrace.integrations.lightning import TraceCallback

trainer = Trainer(callbacks=[TraceCallback("run/")])
"""

from __future__ import annotations

import os
from typing import Any

import ddptrace

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # installed under its older name
    from pytorch_lightning import Callback, LightningModule, Trainer


class TraceCallback(Callback):
    """Record each `Trainer.fit` as `ddptrace.trace` does.

    Args:
        path: The run directory. With several hosts, all must see this directory.
        options: Those of `ddptrace.trace`, such as `profile` and `overwrite`.

    Raises:
        RunDirectoryError: The path is not one.
        TraceStateError: An option does not fit.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._trace = ddptrace.trace(path, **options)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Enter the trace before the model is wrapped, so that its construction is recorded too."""
        if stage == "fit":
            self._trace.__enter__()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the trace."""
        if stage == "fit":
            self._trace.__exit__(None, None, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the trace with the exception that ended the training: Lightning then calls no `teardown`."""
        self._trace.__exit__(type(exception), exception, exception.__traceback__)
