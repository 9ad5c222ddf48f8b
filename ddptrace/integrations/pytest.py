"""A pytest fixture that fails a test if runs have become slower. In `conftest.py`:

pytest_plugins = ["ddptrace.integrations.pytest"]
"""

from __future__ import annotations

from typing import Protocol

import pytest

from ddptrace.analysis.diff.compare import exceeding, parse_limit
from ddptrace.analysis.diff.tables import Diff
from ddptrace.differ import Paths, diff
from ddptrace.render.diff.words import exceeded_words, headline


class NotSlower(Protocol):
    """What the fixture gives."""

    def __call__(self, before: Paths, after: Paths, *limits: str) -> Diff:
        """Compare two sides of runs, and fail the test if a limit is certainly exceeded.

        Args:
            before: Runs, as `ddptrace.diff` takes them.
            after: The same for the other side.
            limits: What may change by how much, as `ddptrace diff --fail-on` takes it: `step>5%`, `exposed>2ms`.

        Returns:
            The comparison.

        Raises:
            DdptraceError: A limit cannot be read, or not be checked with these runs.
        """


@pytest.fixture(scope="session")
def ddptrace_not_slower() -> NotSlower:
    """Call `ddptrace_not_slower(before, after, "step>5%")` to fail the test if a step is certainly 5 % longer."""
    return _not_slower


def _not_slower(before: Paths, after: Paths, *limits: str) -> Diff:
    __tracebackhide__ = True
    asked = [parse_limit(text) for text in limits]
    found = diff(before, after)
    exceeded = [exceeded_words(limit.text, rows) for limit in asked if (rows := exceeding(found, limit))]
    if exceeded:
        pytest.fail("\n".join([headline(found), *exceeded]), pytrace=False)
    return found
