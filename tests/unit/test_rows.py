"""Rows that C code makes: as the dataclass they are made of, in every way that is used."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass

import msgspec
import pytest

from ddptrace.rows import replaced, row


@row
@dataclass(frozen=True, slots=True)
class Wait:
    """How long a rank waited."""

    rank: int
    wait_ns: int | None
    where: str = "main"

    @property
    def is_known(self) -> bool:
        return self.wait_ns is not None


def test_a_row_has_the_values_the_defaults_and_the_methods_of_its_dataclass() -> None:
    one = Wait(3, wait_ns=None)
    assert (one.rank, one.wait_ns, one.where, one.is_known) == (3, None, "main", False)
    assert repr(one) == "Wait(rank=3, wait_ns=None, where='main')"
    assert Wait.__doc__ == "How long a rank waited."


def test_rows_are_equal_by_their_values_and_can_be_keys() -> None:
    assert Wait(1, 2) == Wait(1, 2) != Wait(1, 3)
    assert len({Wait(1, 2), Wait(1, 2), Wait(1, 3)}) == 2


def test_a_row_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Wait(1, 2).rank = 4  # type: ignore[misc]


def test_the_functions_of_dataclasses_take_it_for_one() -> None:
    assert [field.name for field in dataclasses.fields(Wait)] == ["rank", "wait_ns", "where"]
    assert dataclasses.asdict(Wait(1, 2)) == {"rank": 1, "wait_ns": 2, "where": "main"}
    assert dataclasses.replace(Wait(1, 2), rank=5) == replaced(Wait(1, 2), rank=5) == Wait(5, 2)


def test_it_reaches_another_process_and_json() -> None:
    assert pickle.loads(pickle.dumps(Wait(1, 2))) == Wait(1, 2)
    assert msgspec.json.encode(Wait(1, None)) == b'{"rank":1,"wait_ns":null,"where":"main"}'
