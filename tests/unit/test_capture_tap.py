"""The tap's self-test."""

from __future__ import annotations

import pytest

from ddptrace.capture import tap


def test_a_tap_that_failed_its_self_test_is_not_trusted_by_the_next_trace_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def disproved() -> None:
        raise RuntimeError("planted: the self-test saw nothing")

    monkeypatch.setattr(tap, "_proven", False)
    monkeypatch.setattr(tap, "_prove", disproved)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            tap.install()
