"""Reads a pickle that holds nothing but lists, tuples, dicts, texts, bytes, numbers, True, False and None.

A pickle is a program for a small machine, and Python's own machine calls whatever function the program names. This one
knows no instruction that names, makes or calls anything, and so nothing in a file can run. What a file makes it keep
is bounded by the size of the file: no instruction reserves room for what is not there.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any, Final

HIGHEST_PROTOCOL: Final = 5
NAMES: Final = {ord(op.code): op.name for op in pickletools.opcodes}
PLAIN: Final = {ord("N"): None, 0x88: True, 0x89: False}
KEYS: Final = (str, int, bytes, float, bool, type(None))
"""What a dict may have as keys: to hash a tuple that is a million deep would end the process."""

# Instructions, with the name that `pickletools` gives them
PROTO, STOP, MARK, FRAME, POP = 0x80, ord("."), ord("("), 0x95, ord("0")
BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET = ord("q"), ord("r"), 0x94, ord("h"), ord("j")
BININT, BININT1, BININT2, LONG1, LONG4, BINFLOAT = ord("J"), ord("K"), ord("M"), 0x8A, 0x8B, ord("G")
EMPTY_LIST, APPEND, APPENDS = ord("]"), ord("a"), ord("e")
EMPTY_DICT, SETITEM, SETITEMS = ord("}"), ord("s"), ord("u")
EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3 = ord(")"), ord("t"), 0x85, 0x86, 0x87

SIZED: Final = {
    ord("X"): ("<I", True), 0x8C: ("<B", True), 0x8D: ("<Q", True),
    ord("B"): ("<I", False), ord("C"): ("<B", False), 0x8E: ("<Q", False),
}  # fmt: skip
"""Texts and bytes: how their length is written, and whether it is a text."""
NUMBERS: Final = {BININT: "<i", BININT1: "<B", BININT2: "<H", BINFLOAT: ">d"}
SHORT_TUPLES: Final = {EMPTY_TUPLE: 0, TUPLE1: 1, TUPLE2: 2, TUPLE3: 3}
LONGEST_NUMBER: Final = 16
"""Bytes of a whole number: no field of a dump has more than 8."""


class PickleRefusedError(ValueError):
    """The bytes are no pickle, a part of one, or one that holds more than plain values."""


def plain_value(data: bytes) -> Any:
    """Return the value in a pickle. Raises PickleRefusedError."""
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, struct.error):
        raise PickleRefusedError(f"the pickle ends in the middle, or is damaged at byte {machine.at}") from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise PickleRefusedError(f"the pickle is damaged at byte {machine.at}") from None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # stacks under the marks
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Carry out all instructions, the most frequent ones of a dump first."""
        data, memo = self.data, self.memo
        while True:
            code = data[self.at]
            self.at += 1
            if code == BINGET:
                self.stack.append(memo[data[self.at]])
                self.at += 1
            elif code in NUMBERS:
                self.stack.append(self._number(NUMBERS[code]))
            elif code == MARK:
                self.below.append(self.stack)
                self.stack = []
            elif code in SIZED:
                self.stack.append(self._sized(*SIZED[code]))
            elif code == BINPUT:
                memo[self._number("<B")] = self.stack[-1]
            elif code in PLAIN:
                self.stack.append(PLAIN[code])
            elif code == STOP:
                return self._result()
            else:
                self._rare(code)

    def _rare(self, code: int) -> None:
        if code == LONG_BINGET:
            self.stack.append(self.memo[self._number("<I")])
        elif code == LONG_BINPUT:
            self.memo[self._number("<I")] = self.stack[-1]
        elif code == MEMOIZE:
            self.memo[len(self.memo)] = self.stack[-1]
        elif code in (LONG1, LONG4):
            self.stack.append(self._whole_number("<B" if code == LONG1 else "<i"))
        elif code in (EMPTY_LIST, EMPTY_DICT):
            self.stack.append([] if code == EMPTY_LIST else {})
        elif code in (APPEND, APPENDS):
            values = self._above_mark() if code == APPENDS else [self.stack.pop()]
            self._top(list).extend(values)
        elif code in (SETITEM, SETITEMS):
            self._set(self._above_mark() if code == SETITEMS else [self.stack.pop(-2), self.stack.pop()])
        elif code in SHORT_TUPLES:
            self.stack.append(self._tuple(SHORT_TUPLES[code]))
        elif code == TUPLE:
            values = self._above_mark()
            self.stack.append(tuple(values))
        elif code == POP:
            self.stack.pop()
        elif code == FRAME:
            self._number("<Q")  # a hint for readers of a stream
        elif code == PROTO:
            self._check_protocol(self._number("<B"))
        else:
            raise PickleRefusedError(self._refusal(code))

    def _refusal(self, code: int) -> str:
        if code not in NAMES:
            return f"the pickle is damaged at byte {self.at - 1}"
        return (
            f"the pickle holds the instruction {NAMES[code]} at byte {self.at - 1}, which no Flight Recorder writes and"
            " which may run code: it was not carried out"
        )

    def _check_protocol(self, protocol: int) -> None:
        if protocol > HIGHEST_PROTOCOL:
            raise PickleRefusedError(
                f"the pickle is of protocol {protocol}, and none above {HIGHEST_PROTOCOL} is known"
            )

    def _number(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def _bytes(self, length: int) -> bytes:
        part = self.data[self.at : self.at + length]
        if not 0 <= length == len(part):
            raise IndexError
        self.at += length
        return part

    def _sized(self, layout: str, is_text: bool) -> str | bytes:
        part = self._bytes(self._number(layout))
        return part.decode("utf-8", "surrogatepass") if is_text else part

    def _whole_number(self, layout: str) -> int:
        length = self._number(layout)
        if length > LONGEST_NUMBER:
            raise PickleRefusedError(f"the pickle holds a number of {length} bytes at byte {self.at}")
        return int.from_bytes(self._bytes(length), "little", signed=True)

    def _above_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.below.pop()
        return values

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError
        return self.stack[-1]

    def _set(self, pairs: list[Any]) -> None:
        target = self._top(dict)
        if len(pairs) % 2:
            raise TypeError
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, KEYS):
                raise TypeError
            target[key] = value

    def _tuple(self, length: int) -> tuple[Any, ...]:
        if length > len(self.stack):
            raise IndexError
        values = tuple(self.stack[len(self.stack) - length :])
        del self.stack[len(self.stack) - length :]
        return values

    def _result(self) -> Any:
        if len(self.stack) != 1 or self.below:
            raise IndexError
        return self.stack[0]
