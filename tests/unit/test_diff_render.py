"""What changed, as a reader gets it: words first, then figures; names from outside are text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ddptrace.analysis.diff.compare import compare
from ddptrace.analysis.diff.one_run import RunFigures
from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.analysis.tables.table import Table
from ddptrace.render.diff.sheet import diff_sheet
from ddptrace.render.diff.terminal import diff_text
from ddptrace.render.diff.words import headline
from ddptrace.render.sheet_page import page
from ddptrace.render.words import WIDTH
from ddptrace.units import signed_millis, signed_percent
from tests.unit.made_diff import BUCKETS, MS, QUANTITIES, SETTINGS, made_run, made_side

EVIL = "<b onclick=x></script>\x1b[31m|"
NEWER = SETTINGS | {"torch": "2.14.0"}


def compared(before: list[RunFigures] | None = None, **after: object) -> Diff:
    sides = before or made_side("before", 4), made_side("after", 4, first_at=1, **after)
    return compare(("runs/before", "runs/after"), *sides)


def with_step(found: Diff, **more: object) -> Diff:
    rows = [replace(row, **more) if row.kind == "step" else row for row in found.changes]
    return replace(found, changes=Table(Change, rows))


PLAIN = {"before_ns": 50 * MS, "after_ns": 62 * MS, "change_ns": 12 * MS, "change_ratio": 0.24, "low_ns": 9_100_000,
         "high_ns": 14_900_000}  # fmt: skip


def test_the_headline_tells_the_step_how_surely_and_which_part_it_is() -> None:
    told = headline(with_step(compared(wire={2: 12}), **PLAIN, is_sure=True))
    assert told.startswith("The step takes 12.0 ms longer (+24 %, 95 % +9.10 .. +14.9 ms): exposed communication +1")
    less = PLAIN | {"change_ns": -3 * MS, "change_ratio": -0.06}
    assert headline(with_step(compared(), **less, is_sure=True)).startswith("The step takes 3.00 ms less (−6 %, 95 % ")


def test_a_change_that_is_not_sure_is_told_with_what_it_may_be() -> None:
    unsure = PLAIN | {"change_ns": 1_200_000, "change_ratio": 0.024, "low_ns": -1_000_000, "high_ns": 3_400_000}
    assert headline(with_step(compared(), **unsure, is_sure=False)) == (
        "No sure change of the step: +1.20 ms (+2 %, 95 % −1.00 .. +3.40 ms), on steps of 50.0 ms."
    )


def test_the_text_names_the_bucket_its_size_and_what_it_holds() -> None:
    told = " ".join(diff_text(compared(wire={2: 12})).split())
    assert re.search(r"Bucket 2 of reducer 0 communicates 1[12]\.\d ms longer .* it holds layers\.1\.weight\.", told)
    assert re.search(r"0/2 4\.20 MB comm 3\.0\d 1\d\.\d \+1\d\.\d \+\d+ % .* sure", told)


def test_the_text_names_the_rank_that_computes_longer() -> None:
    assert re.search(r"Rank 3 computes \d+\.\d ms longer \(\+", diff_text(compared(slow_rank={3: 30})))


def test_what_is_sure_although_the_step_is_not_is_told() -> None:
    found = compared(made_side("before", 4, noise=0.4), noise=0.4, wire=dict.fromkeys(range(4), 1.0))
    assert not found.step.is_sure
    assert "These changes are sure, although that of the step is not: exposed communication +4.0" in " ".join(
        diff_text(found).split()
    )


def test_settings_and_cautions_stand_under_the_figures() -> None:
    found = compare(("a", "b"), [made_run(0)], [made_run(1, side="after", at=1, settings=NEWER)])
    sections = diff_text(found).split("\n\n")
    assert sections[0] == "ddptrace diff · a (1 run) → b (1 run)"
    assert sections[-3] == "Not set up alike\n  torch: 2.13.0 → 2.14.0"
    assert sections[-2].startswith("Before you rely on this\n  warning  one run per side, so the variation")
    assert sections[-1] == "  Intervals compare 6 blocks of steps with 6, and hold for these runs alone.\n"


@pytest.mark.parametrize("runs", [1, 2, 6])
def test_no_line_is_wider_than_the_terminal(runs: int) -> None:
    found = compare(
        ("x" * 80, "y" * 80), made_side("before", runs), made_side("after", runs, first_at=1, wire={1: 200})
    )
    assert max(map(len, diff_text(found).splitlines())) <= WIDTH


def test_of_many_buckets_and_ranks_the_most_changed_are_shown() -> None:
    told = diff_text(compared(wire={3: 20}))
    assert "Ranks (8 of 12)" in told
    ranks = told[told.index("Buckets") :].splitlines()
    assert {line.split()[0] for line in ranks[1:3]} == {"0/3"}


def test_a_page_holds_the_same_words_tables_and_charts() -> None:
    found = compared(wire={2: 12})
    sheet = diff_sheet(found)
    assert sheet.words[0] == headline(found)
    assert [grid.title for grid in sheet.grids] == ["Typical step", "Phases", "Buckets", "Ranks", "Runs"]
    assert [chart.title for chart in sheet.charts] == ["Where the change is", "Buckets", "Each run"]
    buckets = sheet.grids[2].rows
    assert [row[0] for row in buckets[:2]] == [
        "bucket 2 of reducer 0 (4.20 MB): communication", "bucket 2 of reducer 0 (4.20 MB): exposed",
    ]  # fmt: skip
    assert buckets[0][6:] == ("sure", *buckets[0][7:9], "layers.1.weight")


def test_a_page_without_intervals_and_without_buckets_is_drawn_too() -> None:
    few = tuple(one for one in QUANTITIES if one.kind != "bucket")
    sides = [made_run(0, blocks=0, quantities=few)], [made_run(1, side="after", blocks=0, quantities=few)]
    html = page(diff_sheet(compare(("a", "b"), *sides)))
    assert "How large a change by chance can be is unknown here." in html


def test_names_from_outside_are_text_on_the_page_and_harmless_on_a_terminal() -> None:
    evil = tuple(
        replace(one, bucket=replace(BUCKETS[2], parameters=(EVIL,))) if one.bucket == BUCKETS[2] else one
        for one in QUANTITIES
    )
    before, after = (
        [
            replace(run, path=EVIL, quantities=evil, settings={"torch": EVIL + side}, findings=frozenset({EVIL + side}))
            for run in made_side(side, 4, first_at=at, wire={2: wire})
        ]
        for side, at, wire in (("before", 0, 0), ("after", 1, 20))
    )
    found = compare((EVIL, EVIL), before, after)
    assert "\x1b" not in diff_text(found)
    html = page(diff_sheet(found))
    assert "<b onclick" not in html and html.count("</script>") == 3


@pytest.mark.parametrize(
    ("ns", "told"), [(0, "0.00"), (-4_000, "0.00"), (-6_000, "−0.01"), (1_234_567, "+1.23"), (-2_500e6, "−2,500.0")]
)
def test_a_change_has_its_sign_and_none_where_it_reads_nothing(ns: float, told: str) -> None:
    assert signed_millis(ns) == told


@pytest.mark.parametrize(("ratio", "told"), [(0.0, "0 %"), (-0.001, "< 1 %"), (0.05, "+5 %"), (-1.2, "−120 %")])
def test_a_ratio_has_its_sign_and_none_where_it_is_next_to_nothing(ratio: float, told: str) -> None:
    assert signed_percent(ratio) == told
