"""Reads which rank of which run wrote a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddptrace.live.batch import Identity
from ddptrace.record.directory import read_json
from ddptrace.schema import MANIFEST, META


def read_identity(folder: Path, *, final: bool, rank: int = 0) -> Identity | None:
    """Read a rank's identity; None until its number and the run's id, which rank 0 writes, are known.

    `final`: decide with what is there; `rank`: number for a rank that never learned its own.
    """
    meta, manifest = read_json(folder / META) or {}, read_json(folder.parent / MANIFEST) or {}
    run_id, shared = meta.get("run_id"), manifest.get("run_id")
    number = folder.name.removeprefix("rank-")
    if not final and (run_id is None or not number.isdecimal() or shared not in (None, run_id)):
        return None
    own = int(number) if number.isdecimal() else rank
    meta = {name: manifest[name] for name in ("versions",) if name in manifest} | meta
    return Identity(str(run_id or shared or folder.parent), own, _attempt(folder.parent, manifest), meta)


def _attempt(root: Path, manifest: dict[str, Any]) -> int:
    said = manifest.get("attempt")
    if isinstance(said, int):
        return said
    number = root.name.removeprefix("attempt-")
    return int(number) if number.isdecimal() and number != root.name else 0
