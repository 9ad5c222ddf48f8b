"""Reads sentences by their facts, so that tests do not depend on the words between."""

from __future__ import annotations

import re

FACT = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\b(?:met|missed)\b|(?<= )-(?=[,.])")


def facts(sentence: str) -> str:
    """Return the numbers, verdicts (met, missed) and dashes of a sentence, separated by blanks."""
    return " ".join(FACT.findall(sentence))
