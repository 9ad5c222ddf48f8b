"""Large runs: their JSON is written piece by piece, and the garbage collector is left as it was."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from made_device import make_device_result

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.table import Table
from ddptrace.analyzer import uncollected
from ddptrace.cli.analyze import ROWS_PER_PIECE, encoded, write_all
from ddptrace.findings import Finding
from tests.made import empty_result, make_result


@pytest.mark.parametrize("result", [make_result(2, 6, 5), make_device_result(2, 3), empty_result()])
def test_the_pieces_together_are_the_documented_json(result: Result) -> None:
    assert b"".join(encoded(result)) == msgspec.json.encode(result.to_json_dict())


def test_the_name_of_a_folder_that_is_no_text_is_the_json_escape_of_itself() -> None:
    found = Table(Finding, [Finding("restarted", "info", "runs/\udcff", "é")])
    told = json.loads(b"".join(encoded(replace(empty_result(), findings=found))))
    assert told["findings"] == found.to_dicts()


def test_no_piece_has_more_rows_than_it_may_whatever_the_size_of_the_run() -> None:
    result = make_result(1, 2400, 5)
    pieces = list(encoded(result))
    assert len(result.buckets) == 12_000 and ROWS_PER_PIECE == 5_000
    assert max(piece.count(b'"first_ready_at_ns":') for piece in pieces) == 5_000
    assert b"".join(pieces) == msgspec.json.encode(result.to_json_dict())


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_it_was_also_after_an_error(was_on: bool) -> None:
    try:
        gc.enable() if was_on else gc.disable()
        with pytest.raises(ValueError, match="planted"), uncollected():
            assert not gc.isenabled()
            raise ValueError("planted")
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


def test_files_are_written_without_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("ddptrace.cli.analyze.write_tables", lambda *args: seen.append(gc.isenabled()))
    write_all(replace(make_result(1, 2, 2)), tmp_path)
    assert seen == [False] and gc.isenabled()
