"""The summary of a run in Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptrace.analysis.result import Result
from ddptrace.integrations.summary import summary_metrics

if TYPE_CHECKING:
    import wandb


def log_summary(result: Result, run: wandb.Run) -> None:
    """Put the numbers of `summary_metrics`, and the id of ddptrace's run, into the summary of a run of W&B.

    Args:
        result: What `ddptrace.analyze` returned.
        run: What `wandb.init` returned, not yet finished.
    """
    run.summary.update({**summary_metrics(result), "ddptrace/run_id": result.run_id})
