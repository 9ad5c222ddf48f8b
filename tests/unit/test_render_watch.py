"""The screen of a run that is watched: it fits, says the worst first, and obeys nothing that a run says."""

from __future__ import annotations

import functools
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.render.terminal import summary_text
from ddptrace.render.watch.parts import bar_line, finding_lines, rank_lines
from ddptrace.render.watch.screen import screen, snapshot
from ddptrace.render.watch.view import (
    Line,
    RankView,
    State,
    View,
    last_steps,
    seconds_words,
    sparkline,
    status_lines,
    trend_words,
)
from tests.made import empty_result, make_result

SIZES = [(80, 24), (120, 50), (40, 10), (140, 45), (20, 5), (80, 12), (9, 30), (1, 2)]
S = 10**9


def rank(number: int, state: State = "running", steps: int = 120, silent_s: float = 0.4) -> RankView:
    return RankView(number, state, steps, round(silent_s * S))


def view(result: Result | None = None, count: int = 2, **more: Any) -> View:
    made = make_result(max(count, 1), 14, 7) if result is None else result
    known = {"run_id": made.run_id, "world_size": count, "ranks": tuple(map(rank, range(count))), "keys": True}
    return View("run/", **({"is_there": True, "last": last_steps(made)} | known | more))


@functools.cache
def steady(ranks: int) -> View:
    return view(make_result(ranks, 6, 9), ranks)


def drawn(what: View, width: int, height: int, *, colour: bool = False) -> str:
    file = io.StringIO()
    system = "standard" if colour else None
    Console(file=file, width=width, height=height, force_terminal=colour, color_system=system).print(  # type: ignore[arg-type]
        screen(what, width, height)
    )
    return file.getvalue()


def words(lines: list[Line]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("ranks", [1, 2, 256])
def test_it_fits_exactly(width: int, height: int, ranks: int) -> None:
    lines = drawn(steady(ranks), width, height).splitlines()
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    assert "2 ranks running" in lines[1] or ranks != 2 or width < 20
    assert lines[-1].startswith("looks every 1 s" if width >= 20 else "looks every"[: width - 1])


def test_on_a_usual_terminal_everything_has_a_place() -> None:
    text = drawn(view(), 80, 24)
    lines = text.splitlines()
    assert lines[0] == "ddptrace watch  run/" + " " * 48 + "run 5f1e5f1e"
    assert lines[1] == "2 ranks running · 120 steps"
    assert lines[2].startswith("step 1")
    heads = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert heads[3:4] == ["Typical"]
    assert [head for head in heads if head in ("Buckets", "Ranks", "Findings")] == ["Buckets", "Ranks", "Findings"]
    assert lines[-1] == "looks every 1 s · of the last 14 steps · q or Ctrl-C ends"


def test_more_room_shows_more() -> None:
    few, many = (drawn(view(), 120, height) for height in (24, 50))
    assert "the 4 most exposed of 7" in few and "most exposed" not in many
    assert [line.split()[0] for line in many.splitlines() if line.startswith("  ") and "MB" in line] == list("0123456")


def test_the_breakdown_and_its_words_are_those_of_the_report() -> None:
    made = make_result()
    report, watched = summary_text(made), drawn(view(made), 140, 45)
    said = next(line.strip() for line in report.splitlines() if "is hidden behind compute" in line)
    assert said in watched
    for name in ("compute", "exposed communication", "idle"):
        found = re.search(rf"^  {name} .* ([\d.]+) ms +(\d+ %)$", report, re.M)
        assert found is not None
        assert f" {name} {found[1]} ms {found[2]}" in watched


def test_the_bar_is_as_wide_as_the_screen_and_shows_every_part() -> None:
    for width in (5, 40, 80, 141):
        bar = "".join(words([bar_line(view().last.summary.parts, width)]))  # type: ignore[union-attr]
        assert len(bar) == width
        assert {"█", "▓", "░"} <= set(bar)


def test_of_many_ranks_the_worst_are_shown_and_the_others_counted() -> None:
    states: dict[int, RankView] = {40: rank(40, "gone", silent_s=8), 200: rank(200, "silent", silent_s=21)}
    ranks = tuple(states.get(number, rank(number)) for number in range(256))
    lines = words(rank_lines(view(make_result(256, 6, 4, slow_rank=7), 256, ranks=ranks), 80, 7))
    assert lines[0].split()[0] == "Ranks" and "the worst of 256" not in lines[0]  # no room for it at 80
    shown = [line.split() for line in lines[1:6]]
    assert [(row[0], row[1]) for row in shown[:2]] == [("40", "gone"), ("200", "silent")]
    assert all(row[1] == "running" for row in shown[2:])
    assert lines[-1] == "… and 251 others: 251 running"
    assert "the worst of 256" in words(rank_lines(view(make_result(256, 6, 4), 256, ranks=ranks), 120, 7))[0]


def test_ranks_that_all_fit_are_in_order() -> None:
    lines = words(rank_lines(view(make_result(4, 6, 4), 4), 80, 9))
    assert [line.split()[0] for line in lines] == ["Ranks", "0", "1", "2", "3"]


def test_a_run_that_ended_long_ago_is_told_apart_from_its_state() -> None:
    ranks = tuple(rank(number, "ended", silent_s=59 * 60 + 59) for number in range(2))
    lines = words(rank_lines(view(make_result(2, 6, 4), 2, ranks=ranks), 80, 9))
    assert [line.split()[1:6] for line in lines[1:]] == [["ended", "59", "min", "59", "s"]] * 2


HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]weight[/bold]:smile:\n\r\x9b31m\u202e"


@pytest.mark.parametrize("colour", [False, True])
def test_names_of_a_run_are_neither_markup_nor_obeyed(colour: bool) -> None:
    made = make_result(1, 6, 2)
    buckets = Table(BucketRow, [replace(row, parameters=(HOSTILE,)) for row in made.buckets])
    findings = Table(Finding, [Finding("x", "error", "run", f"it is {HOSTILE}")])
    hostile = replace(made, run_id="\x1b[31m[red]", buckets=buckets, findings=findings)
    what = replace(view(hostile, 1, run_id="\x1b[31m[red]", notes=(HOSTILE,)), path=HOSTILE)
    text = drawn(what, 120, 50, colour=colour)
    left = re.sub(r"\x1b\[[\d;]*m", "", text) if colour else text
    assert not set(left) & set("\x1b\x07\r\x9b\u202e")
    assert left.count("\n") == 50
    assert "[bold]weight[/bold]:smile:" in left and "\\x1b]0;owned" in left


def test_there_are_no_colours_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32m" in drawn(view(), 80, 24, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    styles = set(re.findall(r"\x1b\[([\d;]*)m", drawn(view(), 80, 24, colour=True)))
    assert styles <= {"0", "1", "2"}  # bold and faint are no colours


def test_findings_are_the_gravest_first_and_clipped_to_the_room() -> None:
    long = "word " * 60
    found = [Finding("a", "info", "run", "of no matter"), Finding("b", "warning", "run", long),
             Finding("late-rank", "warning", "run", "look at rank 1"),
             Finding("c", "error", "run", "wrong")]  # fmt: skip
    lines = words(finding_lines(found, ["a note"], 60, 6))
    assert lines[0] == "Findings  4 of 5"
    assert [line.split()[0] for line in lines[1:4]] == ["error", "warning", "warning"]
    assert [line[10:] for line in lines[1:4]] == ["wrong", "a note", "look at rank 1"]
    assert lines[4].endswith("word") and lines[5].endswith(" word …")
    assert len(lines) == 6
    assert max(map(len, lines)) <= 60


def test_what_several_ranks_have_in_common_is_said_once() -> None:
    same = [Finding("a", "info", f"rank {number}", "the same") for number in range(3)]
    assert words(finding_lines(same, [], 80, 9)) == ["Findings", "  info    the same"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (view(None, 0, is_there=False, last=None), ["run/ is not there yet: waiting for a job to write it"]),
        (view(None, 0, last=None), ["run/ is there, but no rank has recorded anything yet: waiting for a job to write"
                                    " it"]),
        (view(last=None), ["2 ranks recording; no step is known to be complete yet"]),
        (view(world_size=4), ["2 of 4 ranks have not begun yet"]),
        (view(), []),
        (view(is_behind=True), ["reading what was recorded before …"]),
        (view(ranks=(rank(0), rank(1, "silent", silent_s=12))),
         ["rank 1 has got no further for 12 s; `ddptrace diagnose run/` says who waits"]),
        (view(ranks=(rank(0, "silent", silent_s=14), rank(1, "silent", silent_s=12))),
         ["no rank has got further for 12 s; `ddptrace diagnose run/` says who waits"]),
        (view(ranks=(rank(0), rank(1, "gone", silent_s=4))),
         ["rank 1 is gone without reporting an error, 4.0 s ago; `ddptrace diagnose run/` says more"]),
        (view(ranks=(rank(0, "gone", silent_s=31), rank(1, "gone", silent_s=32)), left_s=29.0),
         ["ranks 0 and 1 are gone without reporting an error, 31 s ago; `ddptrace diagnose run/` says more",
          "not started anew yet; waiting 29 s for that"]),
        (view(ranks=(rank(0, "ended"), rank(1, "ended")), is_over=True),
         ["ended in order; all of it: `ddptrace analyze run/`"]),
    ],
)  # fmt: skip
def test_what_became_of_the_ranks_is_said_in_a_sentence(what: View, said: list[str]) -> None:
    assert words(status_lines(what, 200)) == said


def test_another_attempt_is_said_to_be_one() -> None:
    assert drawn(view(attempt=2), 80, 24).splitlines()[0].endswith("run 5f1e5f1e · attempt 2, started anew")


def test_a_sentence_is_not_cut_off_on_a_narrow_terminal() -> None:
    what = view(ranks=(rank(0), rank(1, "gone", silent_s=4)))
    assert " ".join(words(status_lines(what, 40))) == " ".join(words(status_lines(what, 200)))
    assert max(map(len, words(status_lines(what, 40)))) <= 40


def test_a_path_with_spaces_can_be_typed_as_it_is_shown() -> None:
    what = replace(view(ranks=(rank(0, "ended"),), is_over=True), path="my runs/a")
    assert words(status_lines(what, 200)) == ["ended in order; all of it: `ddptrace analyze 'my runs/a'`"]


def test_a_run_without_a_step_has_no_figures() -> None:
    text = drawn(view(empty_result(), 1), 80, 24)
    assert "Typical" not in text and "Buckets" not in text
    assert "no step was found" in text


def test_a_snapshot_is_as_long_as_it_needs_to_be() -> None:
    file = io.StringIO()
    Console(file=file, width=96).print(snapshot(view(), 96))
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("ddptrace watch  run/")
    assert not any("Ctrl-C" in line for line in lines)
    assert lines[-1].startswith("  info")


def test_a_sparkline_has_the_median_half_way_up() -> None:
    assert sparkline([2.0, 2.0, 4.0, 9.0, 1.0, 0.0], 6) == "▅▅██▃▁"
    assert sparkline([1.0, 1.0, 1.0], 2) == "▅▅"
    assert sparkline([], 5) == "" and sparkline([1.0], 0) == "" and sparkline([0.0], 3) == "▁"


def test_a_trend_is_told_of_enough_steps() -> None:
    assert trend_words([1.0] * 11) == ("", "")
    assert trend_words([1.0] * 12) == ("steady", "good")
    assert trend_words([1.0] * 6 + [1.2] * 6) == ("20 % slower than 8 steps ago", "warning")
    assert trend_words([1.0] * 6 + [0.5] * 6) == ("50 % faster than 8 steps ago", "good")
    # as single steps differ, half of them by a fifth, it may be chance
    assert trend_words([1.0, 1.0, 1.3, 1.3, 1.3, 1.1, 1.1, 1.1, 1.0, 1.5, 1.5, 1.5]) == ("steady", "good")


def test_times_are_told_as_whoever_looks_sees_them() -> None:
    told = [seconds_words(s) for s in (-1, 0.44, 9.9, 12.4, 119, 200, 7300)]
    assert told == ["0.0 s", "0.4 s", "9.9 s", "12 s", "119 s", "3 min 20 s", "2 h 1 min"]
