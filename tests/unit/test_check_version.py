"""Whatever stands in place of a schema version gives a sentence, and one that somebody reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptrace.errors import RunDirectoryError
from ddptrace.load.run_folder import check_version
from ddptrace.schema import SCHEMA_VERSION


@pytest.mark.parametrize("version", ["1.²", "1.x", "1.", "1", SCHEMA_VERSION, "1.-5", "1.\u0663"])
def test_a_minor_version_that_is_no_newer_number_is_read(version: str) -> None:
    assert check_version(version, Path("meta.json")) is None


@pytest.mark.parametrize(
    "version", [None, 7, [], {"a": []}, True, "", "x" * 10**6, "9" * 10**5, "2.0", "\x1b[31m", 10**400]
)
def test_what_is_no_version_of_ours_is_refused_in_a_short_sentence(version: object) -> None:
    with pytest.raises(RunDirectoryError, match="was written in schema version") as caught:
        check_version(version, Path("meta.json"))
    assert len(str(caught.value)) < 300


def test_a_minor_version_beyond_all_numbers_is_newer() -> None:
    assert "newer than" in (check_version("1." + "9" * 10**5, Path("meta.json")) or "")
