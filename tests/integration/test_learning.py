"""DDP in ten minutes, as its notebook runs it, and the exercises: what their pages say is what the runs show."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.findings import SYNCHRONISED_OFTEN
from tests.launch import ROOT, torchrun

EXAMPLES = ROOT / "examples"
GRADIENTS = 12  # a weight and a bias of each of six layers


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ddptrace.Result]:
    """The results that the notebook leaves. Its trainings are forked here, and their runs lie elsewhere."""
    folder = tmp_path_factory.mktemp("ten-minutes")

    def forked(command: list[str], *, check: bool) -> None:
        assert check and Path(command[5]) == EXAMPLES / "ddp_in_ten_minutes.py"
        torchrun(command[5], command[6], command[7])

    names: dict[str, Any] = {}
    notebook = json.loads((EXAMPLES / "ddp_in_ten_minutes.ipynb").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLES)
        patch.setattr(subprocess, "run", forked)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
                names["root"] = Root(folder)
    found: dict[str, ddptrace.Result] = names["results"]
    return found


class Root:
    """Of the repository, but for `run/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __truediv__(self, name: str) -> Path:
        return (self._folder if name == "run" else ROOT) / name


def sent(result: ddptrace.Result, step: int = 5) -> list[int]:
    """Bytes of what rank 0 sends in a step."""
    return [row.nbytes for row in result.collectives if (row.rank, row.step, row.part) == (0, step, 0)]


def test_each_way_sends_the_gradients_in_the_pieces_that_the_page_tells(ways: dict[str, ddptrace.Result]) -> None:
    pieces = {way: len(sent(result)) for way, result in ways.items()}
    buckets = pieces.pop("bucketed")
    assert pieces == {"naive": GRADIENTS, "flat": 1, "overlap": GRADIENTS, "hook": buckets} and 1 < buckets < GRADIENTS
    nbytes = {way: sum(sent(result)) for way, result in ways.items()}
    assert nbytes["naive"] == nbytes["flat"] == nbytes["overlap"] == nbytes["bucketed"] == 2 * nbytes["hook"]


def test_only_what_is_sent_during_backward_can_be_hidden(ways: dict[str, ddptrace.Result]) -> None:
    found = {way: launched_in_backward(result) for way, result in ways.items()}
    assert found["naive"] == found["flat"] == 0
    assert found["overlap"] == GRADIENTS
    assert found["bucketed"] == found["hook"] == len(sent(ways["bucketed"]))


def launched_in_backward(result: ddptrace.Result, step: int = 5) -> int:
    (backward,) = (row for row in result.phases if (row.rank, row.step, row.phase) == (0, step, "backward"))
    launches = [row.launch_at_ns for row in result.collectives if (row.rank, row.step, row.part) == (0, step, 0)]
    return sum(backward.begin_at_ns <= at < backward.end_at_ns for at in launches)


@pytest.fixture(scope="module")
def exercise(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("exercises")

    def run(fault: int) -> ddptrace.Result:
        torchrun(EXAMPLES / "exercise.py", fault, folder / str(fault))
        return ddptrace.analyze(folder / str(fault))

    return run


def test_the_faults_of_the_exercises_show_as_the_answers_say(exercise: Any) -> None:
    none, one_bucket, often, chatty = map(exercise, (0, 2, 3, 4))
    assert len(sent(none)) > 1 == len(sent(one_bucket))
    assert sum(sent(often)) == 4 * sum(sent(none))
    assert [one for one in often.findings if one.kind is SYNCHRONISED_OFTEN]
    assert Counter(sent(chatty))[4] == 40 and not Counter(sent(none))[4]


@pytest.mark.alone  # phases are compared
def test_the_late_rank_of_the_first_exercise_is_named(exercise: Any) -> None:
    result = exercise(1)
    forward = Counter[int]()
    for row in result.steps:
        forward[row.rank] += row.forward_ns
    assert forward[1] > 1.5 * forward[0]
    assert any(one.code in ("late-rank", "waiting-for-ranks", "uneven-compute") for one in result.findings)
