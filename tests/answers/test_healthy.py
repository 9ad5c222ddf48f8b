"""Where nothing is wrong, no question is answered."""

from __future__ import annotations

import re

import pytest

from ddptrace.load.run import read_run
from tests.answers.conftest import Answer, Ask

pytestmark = pytest.mark.alone

QUEUED_MAX_RATIO = 0.05

CAUSES = (
    "bucket-over-cap", "contention", "slow-message", "late-rank", "jitter", "heavy-layer", "find-unused-parameters",
    "synchronised-often", "synchronised-early", "queued", "processors-crowded", "waiting-for-ranks", "clock-disagrees",
)  # fmt: skip


def undisturbed(answer: Answer) -> Answer:
    """Where others use this machine's processors, this is no healthy run."""
    marks = [mark for rank in read_run(answer.run).ranks for mark in rank.load.marks]
    queued_ns, whole_ns = (
        sum(mark.queued_ns for mark in marks),
        sum(mark.end_at_ns - mark.begin_at_ns for mark in marks),
    )
    if queued_ns > QUEUED_MAX_RATIO * whole_ns:
        pytest.skip(f"ranks that sleep waited for a processor in {100 * queued_ns / whole_ns:.0f} % of the time")
    return answer


def test_of_a_healthy_training_no_cause_is_said_and_most_of_its_communication_is_hidden(ask: Ask) -> None:
    answer = undisturbed(ask("nothing"))
    assert [code for code in CAUSES if answer.said(code)] == []
    hidden = re.search(r"(\d+) % of [\d.]+ ms communication is hidden", answer.text)
    assert hidden and int(hidden[1]) > 60


def test_of_a_healthy_training_that_is_profiled_no_small_message_is_called_slow(ask: Ask) -> None:
    assert undisturbed(ask("nothing", "--profile")).said("slow-message") == ""
