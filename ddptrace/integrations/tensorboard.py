"""The summary of a run in TensorBoard."""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter

from ddptrace.analysis.result import Result
from ddptrace.integrations.summary import summary_metrics


def log_summary(result: Result, writer: SummaryWriter, step: int = 0) -> None:
    """Add the numbers of `summary_metrics` as scalars.

    Args:
        result: What `ddptrace.analyze` returned.
        writer: Where to add them.
        step: The training's step that the scalars stand at.
    """
    for name, value in summary_metrics(result).items():
        writer.add_scalar(name, value, step)
    writer.flush()
