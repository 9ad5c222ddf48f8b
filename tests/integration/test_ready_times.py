"""When gradients are ready, against hooks of the program's own; and on how many parameters that takes a hook."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from ddptrace.load.run import read_run
from tests.launch import torchrun
from tests.programs.ready_beside import BACKWARDS, CASES

PARAMETERS = 10
APART_NS = 20_000_000
"""So far apart, at most, are two hooks of one gradient between which the thread loses its core."""

HOOKS = {
    "alone": [2] * BACKWARDS,
    "accumulating": [2, *[PARAMETERS] * (BACKWARDS - 1)],
    "accumulating_outside": [2, 2, 2, PARAMETERS, PARAMETERS],
    "joined": [2, 2, *[PARAMETERS] * (BACKWARDS - 2)],
    "dropping": [PARAMETERS] * BACKWARDS,
}
"""After each backward."""
LOST = {("accumulating_outside", 2): [0, PARAMETERS - 1]}
"""By case and backward, the only parameters whose gradients are told: that had a hook."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ready")
    torchrun("ready_beside.py", folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_told_when_the_programs_own_hooks_saw_them(name: str, runs: Path) -> None:
    told = [one for one in read_run(runs / name).ranks[0].ready if one.reducer == 0]
    witness = [seen for seen, _ in json.loads((runs / f"{name}.json").read_text())]
    assert len(told) == len(witness) == BACKWARDS
    apart: list[int] = []
    for index, (ready, seen) in enumerate(zip(told, witness, strict=True)):
        only = LOST.get((name, index))
        seen = [(parameter, at) for parameter, at in seen if only is None or parameter in only]
        assert ready.parameters.tolist() == [parameter for parameter, _ in seen]
        apart += [at - own for at, (_, own) in zip(ready.at_ns.tolist(), seen, strict=True)]
    between = statistics.median(apart)  # times are told since the run began
    assert all(abs(one - between) < APART_NS for one in apart)
    assert sum(abs(one - between) < APART_NS / 100 for one in apart) > len(apart) / 2


@pytest.mark.parametrize("name", CASES)
def test_two_hooks_are_enough_where_the_reducer_tells_the_rest(name: str, runs: Path) -> None:
    assert [hooks for _, hooks in json.loads((runs / f"{name}.json").read_text())] == HOOKS[name]
