"""200 damaged run directories, each read by a few commands. `python -m tests.mutants` reads thousands."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.mutants.bases import BASES, record
from tests.mutants.trial import FAILED, REFUSED, import_all, tried, whole

MUTANTS, AT_ONCE, COMMANDS_EACH = 200, 25, 2


CANNOT = {"rpc": {"whatif", "whatif_json"}, "traces": {"whatif", "diagnose", "diagnose_json", "watch"}}
"""By base, the commands that refuse it: not every run holds what a command needs, nor what `whatif --scale` needs."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return record(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def reader(bases: dict[str, Path]) -> Iterator[Executor]:
    """A fresh process to fork from: pytest's own may have threads, and what a fork finds locked stays locked."""
    with ProcessPoolExecutor(1, get_context("spawn"), import_all, (bases,)) as started:
        yield started


@pytest.mark.parametrize("first", range(0, MUTANTS, AT_ONCE))
def test_a_spoilt_run_gives_an_answer_or_one_sentence_and_is_left_alone(
    reader: Executor, bases: dict[str, Path], first: int
) -> None:
    found = [reader.submit(tried, seed, bases, COMMANDS_EACH).result() for seed in range(first, first + AT_ONCE)]
    defects = [(one.seed, one.base, one.how, verdict) for one in found for verdict in one.verdicts]
    assert [defect for defect in defects if defect[3].outcome == FAILED] == []


@pytest.mark.parametrize("base", [make.__name__ for make in BASES])
def test_a_run_that_nobody_has_spoilt_is_answered(reader: Executor, bases: dict[str, Path], base: str) -> None:
    """Else commands that refuse everything would pass. HTA need not be installed."""
    all_verdicts = reader.submit(whole, bases, base).result()
    verdicts = [verdict for verdict in all_verdicts if not verdict.command.startswith("hta")]
    assert {verdict.command: verdict.why + verdict.more for verdict in verdicts if verdict.outcome == FAILED} == {}
    assert {one.command for one in verdicts if one.outcome == REFUSED} == CANNOT.get(base, set())
