"""Why is Gloo slow?"""

from __future__ import annotations

import re

from ddptrace.analysis.summary import summarize
from ddptrace.render.headline import headline
from tests.answers.conftest import Ask, printed
from tests.programs.asked import BUSY_S, SENT_AT_ONCE


def test_that_collectives_stand_behind_two_worker_threads_is_told_with_how_long(ask: Ask) -> None:
    said = ask("at once").said("queued")
    found = re.search(r"queue longer than they run: ([\d.]+) ms against ([\d.]+) ms \(means of (\d+) in a", said)
    assert found and float(found[1]) > float(found[2]) and int(found[3]) > SENT_AT_ONCE
    assert "the backend has 2 worker threads and runs 2 at a time" in said and "fewer and larger collectives" in said


def test_that_ranks_and_their_threads_share_too_few_processors_is_told_with_the_time_lost(ask: Ask) -> None:
    """Both ranks compute on the same core: while one does, the other waits."""
    said = ask("one core").said("processors-crowded")
    found = re.match(r"All ranks wait for a processor for ([\d.]+) ms of a step", said)
    assert found and float(found[1]) > 0.3 * BUSY_S * 1e3
    assert "Start fewer threads or processes" in said


def test_advice_on_a_crowded_machine_begins_with_the_processors_as_analysis_does(ask: Ask) -> None:
    answer = ask("one core")
    first = headline(answer.result, summarize(answer.result)).text
    assert "wait for a processor" in first
    assert printed("advise", answer).startswith(f"ddptrace advise · {first}")
