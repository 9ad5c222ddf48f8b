"""One EVENT record as a tuple, and where its fields are."""

from __future__ import annotations

from typing import Any

Row = tuple[Any, ...]  # the fields of one EVENT record, in the order of schema.EVENT_DTYPE
KIND, FLAGS, THREAD, NAME, BEGIN, END, A, B, C, D, E, F, G = range(13)
