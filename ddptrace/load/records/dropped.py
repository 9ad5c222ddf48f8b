"""Records that the writer had to drop, in words: why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from ddptrace.record import Records


def dropped_words(records: Records) -> Iterator[str]:
    """A sentence for each reason. Before schema version 1.4 a run told how many, and not why."""
    short, bursts = records.dropped_without_room, records.dropped_in_bursts
    rest = records.dropped - short - bursts
    if short:
        yield (
            f"{short} records were lost, since there was no room for another file; free some of the disk, or record"
            " into a folder on another one"
        )
    if bursts:
        yield (
            f"{bursts} records were lost in bursts, since they came faster than files were made for them (the disk had"
            " room); give ddptrace.Keep(nbytes=...) more, up to 64 MiB, for larger files, or every=... for fewer"
            " records"
        )
    if rest > 0:
        why = "values out of range" if short or bursts else "values out of range; in runs before schema 1.4, no room"
        yield f"{rest} records could not be written ({why})"
