"""Pure functions from the tables of a run to the tables a person reads. No files, no pictures, no torch."""

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.summary import Summary, summarize
from ddptrace.analysis.tables import (
    Activity,
    BucketRow,
    CollectiveRow,
    PhaseRow,
    RankRow,
    Result,
    StepRow,
    Table,
)

__all__ = [
    "Activity",
    "BucketRow",
    "CollectiveRow",
    "PhaseRow",
    "RankRow",
    "Result",
    "StepRow",
    "Summary",
    "Table",
    "analyze_run",
    "summarize",
]
