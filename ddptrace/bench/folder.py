"""The folder that a benchmark writes into: held against other benchmarks, and shared by its ranks or not."""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptrace.errors import DdptraceError

if TYPE_CHECKING:
    from ddptrace.bench.job import Job

LOCK: Final = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other benchmarks out of the folder, whose files would mix with ours. A holder that dies lets go of it.

    Raises DdptraceError where another one holds it.
    """
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DdptraceError(
                f"another benchmark writes into {folder}: wait for its end, or give another folder (--out)"
            ) from None
        except OSError:
            pass  # a file system without locks, as some of clusters are
        yield


def ranks_elsewhere(job: Job) -> int:
    """How many ranks have a folder of this name on a disk of their own, where rank 0 does not see what they write.
    Collective."""
    name = f".seen-{uuid.uuid4().hex}"
    mark = job.folder / name
    if job.rank == 0:
        mark.touch()
    name = str(job.gather(name)[0])
    seen = job.gather((job.folder / name).exists())
    if job.rank == 0:
        mark.unlink()
    return seen.count(False)
