"""A callback for the Trainer of Hugging Face Transformers.

from ddptrace.integrations.transformers import TraceCallback

trainer = Trainer(model, arguments, callbacks=[TraceCallback("run/")])
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import ddptrace


class TraceCallback(TrainerCallback):
    """Record each `Trainer.train` as `ddptrace.trace` does.

    The Trainer tells its callbacks of no exception. A training that raises is recorded until the process ends.

    Args:
        path: The run directory. With several hosts, all must see this directory.
        options: Those of `ddptrace.trace`, such as `profile` and `overwrite`.

    Raises:
        RunDirectoryError: The path is not one.
        TraceStateError: An option does not fit.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._trace = ddptrace.trace(path, **options)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Enter the trace."""
        self._trace.__enter__()
        atexit.register(self._leave)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the trace."""
        self._leave()

    def _leave(self) -> None:
        atexit.unregister(self._leave)
        self._trace.__exit__(None, None, None)
