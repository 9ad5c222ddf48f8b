"""The page that follows one bucket from hook to report names files that the bucket really passes."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

import ddptrace
from ddptrace.record.directory import write_json
from ddptrace.render.report import write_report
from ddptrace.schema import MANIFEST, SCHEMA_VERSION
from tests.documents import DOCS
from tests.unit.telemetry_records import RUN_ID, Rank

PACKAGE: Final = Path(ddptrace.__file__).parent
MOST_FILES: Final = 20


def way() -> list[str]:
    """Return the files in order, each once."""
    page = (DOCS / "how-it-works.md").read_text()
    section = page.split("## The way of one bucket")[1].split("\n## ")[0]
    return list(dict.fromkeys(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)))


def test_the_way_is_short_and_every_file_on_it_is_there() -> None:
    files = way()
    assert 15 <= len(files) <= MOST_FILES
    assert [file for file in files if not (PACKAGE / file).is_file()] == []


def test_a_bucket_passes_these_files_from_its_records_to_the_report(tmp_path: Path) -> None:
    # GIVEN what two ranks recorded of their buckets
    passed: set[str] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        passed.add(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        for number in range(2):
            rank = Rank(tmp_path / "run", number)
            rank.steps(0, 12)
            rank.recorder.close()
        head = {"schema": SCHEMA_VERSION, "run_id": RUN_ID, "zero_unix_ns": time.time_ns(), "world_size": 2}
        write_json(tmp_path / "run" / MANIFEST, head)
        # WHEN a report is made of it
        write_report(ddptrace.analyze(tmp_path / "run"), tmp_path / "report.html")
    finally:
        sys.setprofile(None)
    # THEN each file behind the hooks took part
    behind = [file for file in way() if not file.startswith("capture/")]
    assert len(behind) > 10
    assert [file for file in behind if str(PACKAGE / file) not in passed] == []
