"""Waits of the compute stream for events: which classes of events are watched, and what a wait does then."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from ddptrace.capture.device.timed_events import DeviceTimer
from ddptrace.capture.device.wrapped_calls import watch_waits
from ddptrace.capture.surface import Patches


class Timer:
    """Notes what it is told; times the waits for which `places` is true."""

    def __init__(self, event_type: type, *, places: bool = True) -> None:
        self.event_type = event_type
        self.told: list[tuple[Any, ...]] = []
        self._places = places

    def before_wait(self, awaited: Any, stream: Any) -> tuple[int, str] | None:
        self.told.append(("before", awaited, stream))
        return (7, "placed") if self._places else None

    def after_wait(self, placed: tuple[int, Any], stream: Any) -> None:
        self.told.append(("after", placed, stream))


def made() -> type:
    class Event:
        """As `torch.cuda.Event`."""

        def wait(self, stream: Any = None) -> str:
            return f"waited on {stream}"

    return Event


def watched(timer: Timer) -> Patches:
    patches = Patches()
    watch_waits(patches, cast(DeviceTimer, timer))
    return patches


@pytest.mark.parametrize("places", [True, False])
def test_a_wait_is_timed_around_and_returns_what_it_did(places: bool) -> None:
    kind = made()
    original, timer = vars(kind)["wait"], Timer(kind, places=places)
    patches, event = watched(timer), kind()
    assert event.wait("stream") == "waited on stream" and event.wait() == "waited on None"
    whens = ["before", "after"] if places else ["before"]
    assert [when for when, *_ in timer.told] == whens * 2
    assert patches.undo() == [] and vars(kind)["wait"] is original


def test_a_class_of_c_is_left_as_it_is() -> None:
    timer = Timer(torch.Event)
    assert watched(timer).undo() == [] and timer.told == []
