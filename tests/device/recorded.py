"""What programs of these tests left on an H100: trainings of ranks that shared it over NCCL, and planted causes of lost
time, with torch 2.11. `DEVICE=recorded` takes that instead of running them, so that the checks of a GPU run anywhere.

`python -m tests.device.recorded FOLDER` packs what pytest has left in FOLDER on a GPU, by the names that tests gave it.
Profiler files lie unpacked in the archive: together they pack better.
"""

from __future__ import annotations

import functools
import gzip
import io
import sys
import tarfile
from collections import defaultdict
from pathlib import Path, PurePath
from typing import Final

import pytest

ARCHIVE: Final = Path(__file__).resolve().parents[1] / "recorded" / "on_an_h100.tar.xz"
PROFILERS: Final = "kineto-"  # how a run names the profiler's files
PLANTED: Final = ("sleep", "item", "copy", "loader", "launches", "late", "ahead")
KEPT: Final = (
    *("stock-plain-2", "own-plain-2", "stock-loaded-2", "fsdp2-2", "tensor-2", "pipeline-2", "all_to_all-2"),
    *(f"{recorder}-{cause}" for recorder in ("trace", "events") for cause in PLANTED if cause != "copy"),
    *("trace-copy", "ends-late", "events-slow", "profiler-item", "profiler-copy"),
)


def take_or_skip(program: str, *arguments: object, ranks: int) -> None:
    """Write what a program left on the GPU where it would leave it now."""
    if program == "strategy.py":
        _, out, strategy = arguments
        name = f"{strategy}-{ranks}"
    elif program == "planted.py":
        out, recorder, cause = arguments
        name = f"{recorder}-{cause}"
    else:
        pytest.skip(f"nothing is kept of {program}")
    files = contents().get(name)
    if files is None:
        pytest.skip(f"{name} is not kept")
    for place, content in files.items():
        path = Path(str(out)) / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.startswith(PROFILERS):
            path.with_suffix(".json.gz").write_bytes(gzip.compress(content, 1))
        else:
            path.write_bytes(content)


@functools.cache
def contents() -> dict[str, dict[PurePath, bytes]]:
    """Return the files by the name under which they were left, each by its place there."""
    found: defaultdict[str, dict[PurePath, bytes]] = defaultdict(dict)
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            name, *place = PurePath(member.name).parts
            found[name][PurePath(*place)] = file.read()
    return found


def pack(left: Path) -> None:
    found = {path.name[:-1]: path for path in sorted(left.rglob("*-*0")) if path.is_dir()}  # pytest numbers folders
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in KEPT:
            for path in sorted(found[name].rglob("*")):
                inside = path.relative_to(found[name])
                if path.is_file() and "analysis" not in inside.parts:
                    content = path.read_bytes()
                    if path.suffix == ".gz":
                        content, inside = gzip.decompress(content), inside.with_suffix("")
                    member = tarfile.TarInfo(str(PurePath(name, inside)))
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
