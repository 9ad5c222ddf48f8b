"""The summary of a run in MLflow."""

from __future__ import annotations

import mlflow

from ddptrace.analysis.result import Result
from ddptrace.integrations.summary import summary_metrics


def log_summary(result: Result, run_id: str | None = None) -> None:
    """Log the numbers of `summary_metrics`, and the id of ddptrace's run as the tag `ddptrace.run_id`.

    Args:
        result: What `ddptrace.analyze` returned.
        run_id: The run of MLflow to log to. None: the active one.
    """
    mlflow.log_metrics(summary_metrics(result), run_id=run_id)
    client_run = run_id or mlflow.active_run().info.run_id
    mlflow.MlflowClient().set_tag(client_run, "ddptrace.run_id", result.run_id)
