"""What reducers sent of their gradients, where a sum over the parameters or over all calls would say something false.

The model of `programs/gradients_sent.py` has 9640 bytes of parameters, its head 1320 of them.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.traffic.digest import traffic_report
from ddptrace.analysis.traffic.gradients import GradientDigest
from ddptrace.render.traffic.words import why_words
from tests.programs.gradients_sent import STEPS
from tests.self_launched import self_launched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gradients")
    done = self_launched("gradients_sent.py", path)
    assert done.stdout.split() == ["1", str(-signal.SIGKILL)], done.said
    return path


def digest(folder: Path, name: str) -> GradientDigest:
    (one,) = traffic_report(ddptrace.analyze(folder / name)).gradients
    return one


@pytest.mark.parametrize("name", ["frozen", "frozen-bucketed"])
def test_frozen_parameters_are_expected_of_neither_wrapper(folder: Path, name: str) -> None:
    one = digest(folder, name)
    assert (one.gradient_nbytes, one.nbytes, one.sent_ratio) == (1320, 1320, 1.0)
    codes = {finding.code for finding in ddptrace.analyze(folder / name).findings}
    assert "bucket-over-cap" not in codes  # of the frozen weight of 8192 bytes, with a cap of 1310


def test_a_trained_parameter_larger_than_a_bucket_may_be_is_told(folder: Path) -> None:
    (told,) = (one for one in ddptrace.analyze(folder / "builtin").findings if one.code == "bucket-over-cap")
    assert told.message.startswith("Parameter 0.weight alone")


@pytest.mark.parametrize("name", ["builtin", "hooked-before"])
def test_half_precision_is_the_reason_where_no_hook_was_seen_being_registered(folder: Path, name: str) -> None:
    one = digest(folder, name)
    assert (one.nbytes, one.hooks, one.dtypes) == (4820, (), ("float16",))
    assert why_words(one) == "Reducer 0 sent 50 % of its gradients' bytes, as float16."


def test_traffic_and_collectives_name_one_origin_where_no_hook_was_seen_being_registered(folder: Path) -> None:
    result = ddptrace.analyze(folder / "hooked-before")
    for rows in (result.traffic, result.collectives):
        assert {row.origin for row in rows if row.dtype == "float16"} == {"hook"}


def test_a_rank_killed_in_backward_keeps_what_it_sent_in_its_whole_steps(folder: Path) -> None:
    result = ddptrace.analyze(folder / "killed")
    sent = {(row.rank, row.step): row.nbytes for row in result.gradient_traffic}
    assert sent == {(rank, step): 9640 for rank in (0, 1) for step in range(STEPS)}
    # AND it was in the middle of a backward, with gradients on their way
    last = max(row.launch_at_ns for row in result.collectives if row.rank == 1 and row.origin == "gradients")
    assert last >= max(row.end_at_ns for row in result.steps if row.rank == 1)
