"""What a run is called, and what it ran: from the manifest, and from what the ranks described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.rank_facts import RankFacts


@dataclass(frozen=True, slots=True)
class About:
    """What a run is called, and what it ran. Empty or None where nothing tells."""

    name: str = ""  # given by a person
    tags: tuple[str, ...] = ()  # given by a person
    notes: str = ""  # given by a person
    models: tuple[str, ...] = ()  # classes of the modules whose gradients are reduced
    gradient_nbytes: int | None = None  # bytes of their gradients, on one rank
    command: tuple[str, ...] = ()  # words of the command line of rank 0
    commit: str | None = None  # of the Git repository around the program
    scheduler: str | None = None  # what gave the job its id: slurm, pbs, lsf, torchelastic
    job_id: str | None = None  # the scheduler's id of the job
    torch: str | None = None  # version
    python: str | None = None  # version


UNKNOWN: Final = About()


def about(manifest: Mapping[str, Any], ranks: Sequence[RankFacts]) -> About:
    """Read the manifest, which may be damaged: what has another type counts as not there."""
    versions = manifest.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    reducers = next((one.reducers for one in ranks if one.reducers), ())
    return About(
        name=_text(manifest.get("name")) or "",
        tags=tuple(_texts(manifest.get("tags"))),
        notes=_text(manifest.get("notes")) or "",
        models=tuple(dict.fromkeys(one.module for one in reducers if one.module)),
        gradient_nbytes=sum(one.nbytes for one in reducers) or None,
        command=tuple(_texts(manifest.get("command"))),
        commit=_text(manifest.get("commit")),
        scheduler=_text(manifest.get("scheduler")),
        job_id=_text(manifest.get("job_id")),
        torch=_text(versions.get("torch")),
        python=_text(versions.get("python")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> Iterator[str]:
    yield from (one for one in (value if isinstance(value, list) else ()) if isinstance(one, str))
