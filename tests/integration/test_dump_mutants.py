"""200 damaged sets of Flight Recorder dumps, and all hostile pickles. `python -m tests.mutants.dumps` reads more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptrace.load.flight_recorder.plain_pickle import PickleRefusedError, plain_value
from tests.mutants.dumps import ANSWERED, REFUSED, bases, hostile_pickles, mutant, outcome

MUTANTS, AT_ONCE = 200, 50


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.parametrize("first", range(0, MUTANTS, AT_ONCE))
def test_damaged_dumps_give_an_answer_or_one_sentence(spoilt: dict[str, Path], tmp_path: Path, first: int) -> None:
    found = {}
    for seed in range(first, first + AT_ONCE):
        how = mutant(seed, spoilt[sorted(spoilt)[seed % len(spoilt)]], tmp_path / str(seed))
        found[seed, how] = outcome(tmp_path / str(seed))
    assert {one: said for one, said in found.items() if said not in (ANSWERED, REFUSED)} == {}


def test_dumps_that_nobody_has_spoilt_are_answered(spoilt: dict[str, Path]) -> None:
    assert {name: outcome(folder) for name, folder in spoilt.items()} == {"pickles": ANSWERED, "JSON": ANSWERED}


def test_a_hostile_pickle_gives_an_answer_or_one_sentence_and_runs_nothing(tmp_path: Path) -> None:
    flag, said = tmp_path / "flag", {}
    for number, (name, data) in enumerate(hostile_pickles(flag)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "_dump_0").write_bytes(data)
        said[name] = outcome(folder)
    assert {name: one for name, one in said.items() if one not in (ANSWERED, REFUSED)} == {}
    assert len(said) > 100 and not flag.exists()


def test_every_pickle_that_names_or_calls_something_is_refused_with_the_instruction(tmp_path: Path) -> None:
    """Not for some other reason, which may be missing the next time."""
    calls = ("a call of", "an instance", "a state", "a name", "an extension", "a persistent", "a binary", "an out-of")
    refused = 0
    for name, data in hostile_pickles(tmp_path / "flag"):
        if name.startswith(calls):
            with pytest.raises(PickleRefusedError, match=r"holds the instruction [A-Z_0-9]+ at byte \d+"):
                plain_value(data)
            refused += 1
    assert refused > 70
