"""`ddptrace watch` of a training that is killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watching import Terminal, Training, fits, once, terminal_in, training_in, watching


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with terminal_in(tmp_path) as one:
        yield one


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Training]:
    with training_in(tmp_path) as one:
        yield one


def test_ranks_that_are_killed_are_seen_to_be_gone_and_the_user_may_leave(terminal: Terminal, job: Training) -> None:
    watching(terminal)
    terminal.wait("2 ranks running", "Typical step")
    job.kill()
    text = terminal.wait(
        r"ranks 0 and 1 are gone without reporting an error", "not started anew yet; waiting", "2 ranks gone"
    )
    assert fits(text, 80, 24), text
    assert re.search(r"^  0 +gone +", text, re.M) and "Typical step" in text
    terminal.press("q")
    left = terminal.wait("left with 0")
    assert "2 ranks gone" in left
    assert "2 ranks gone" in once(job.run)


def test_ctrl_z_gives_the_terminal_back_and_keys_are_heard_afterwards(terminal: Terminal) -> None:
    terminal.type("exec bash --norc")  # a shell that sets the terminal as it wants it
    watching(terminal)
    terminal.wait("run is not there yet", "looks every")
    terminal.press("C-z")
    assert "looks every" not in terminal.wait("Stopped")
    terminal.type("fg")
    terminal.wait("run is not there yet", "looks every")
    terminal.press("q")
    terminal.wait_until(lambda text: "looks every" not in text, "the end")
