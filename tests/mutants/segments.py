"""A rank's record file taken apart and put together again, with the checksum that makes it look untouched."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from ddptrace.schema import EVENT, EVENT_DTYPE, GUARD, RECORD_NBYTES, STRING, TEXT_PER_RECORD, Kind

NAME_AT = 4  # a string record's id


@dataclass
class SegmentFile:
    """`slots`: 64 bytes each. `trailer`: the last one where the file was finished."""

    slots: list[bytes]
    trailer: bytes | None

    @classmethod
    def read(cls, path: Path) -> Self:
        data = path.read_bytes()
        whole = len(data) // RECORD_NBYTES * RECORD_NBYTES
        slots = [data[at : at + RECORD_NBYTES] for at in range(0, whole, RECORD_NBYTES)]
        finished = bool(slots) and slots[-1][0] == Kind.TRAILER
        return cls(slots[:-1] if finished else slots, slots[-1] if finished else None)

    def write(self, path: Path) -> None:
        """Sealed anew where it was finished."""
        body = b"".join(self.slots)
        path.write_bytes(body + (b"" if self.trailer is None else self._sealed(body)))

    def _sealed(self, body: bytes) -> bytes:
        assert self.trailer is not None
        fields = list(EVENT.unpack(self.trailer))
        fields[7], fields[8] = len(self.slots), zlib.crc32(body)
        return EVENT.pack(*fields)

    def events(self) -> list[int]:
        """Places of the records that are neither texts nor empty."""
        return [at for at, slot in enumerate(self.slots) if slot[0] not in (Kind.NONE, Kind.STRING)]

    def texts(self) -> dict[int, str]:
        parts: dict[int, list[bytes]] = {}
        for slot in self.slots:
            if slot[0] == Kind.STRING:
                parts.setdefault(_id(slot), []).append(slot[8 : 8 + min(slot[1], TEXT_PER_RECORD)])
        return {number: b"".join(part).decode(errors="replace") for number, part in parts.items()}

    def put_text(self, number: int, text: bytes) -> None:
        """In place of the text that had this id."""
        at = next(at for at, slot in enumerate(self.slots) if slot[0] == Kind.STRING and _id(slot) == number)
        before = self.slots[:at]
        after = [slot for slot in self.slots[at:] if slot[0] != Kind.STRING or _id(slot) != number]
        self.slots = [*before, *_chunks(number, text), *after]

    def put_field(self, at: int, field: str, value: int) -> None:
        """`value` is cut to the field's width."""
        slot = np.frombuffer(self.slots[at], EVENT_DTYPE).copy()
        dtype, where = EVENT_DTYPE.fields[field][:2]  # type: ignore[index]
        raw = (value % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")
        data = bytearray(slot.tobytes())
        data[where : where + dtype.itemsize] = raw
        self.slots[at] = bytes(data)


def _id(slot: bytes) -> int:
    return int(struct.unpack_from("<I", slot, NAME_AT)[0])


def _chunks(number: int, text: bytes) -> list[bytes]:
    parts = [text[at : at + TEXT_PER_RECORD] for at in range(0, len(text) + 1, TEXT_PER_RECORD)]
    return [STRING.pack(Kind.STRING, len(part), k & 0xFFFF, number, part, GUARD) for k, part in enumerate(parts)]
