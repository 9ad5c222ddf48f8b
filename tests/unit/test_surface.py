"""A surface that fails: told once, and nothing of it comes into training."""

from __future__ import annotations

import warnings

import pytest

from ddptrace.capture.surface import Surface


class Untold(Exception):
    def __str__(self) -> str:
        raise LookupError("planted")


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("error", "told"), [(ValueError("planted"), "ValueError: planted"), (Untold(), "Untold")])
def test_an_error_is_noted_and_stays_out_of_training_whatever_the_program_makes_of_warnings(
    error: Exception, told: str
) -> None:
    notes: list[tuple[str, str]] = []
    surface = Surface("program", lambda kind, message: notes.append((kind.code, message)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert surface.call(failing, error) is None
        assert surface.attempt(failing, error) is None
    assert notes == [("surface-failed", f"ddptrace stopped watching program: {told}")]
    assert not surface.on


def test_a_note_that_cannot_be_taken_stays_out_of_training_too() -> None:
    surface = Surface("program", lambda kind, message: failing(OSError("planted")))
    assert surface.call(failing, ValueError("first")) is None
    assert not surface.on
