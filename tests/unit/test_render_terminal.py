"""The summary on the terminal fits it, says the worst first, and obeys nothing that a run says."""

from __future__ import annotations

import dataclasses

from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.render.terminal import CHARGED, WIDTH, summary_text
from tests.made import MS, empty_result, make_result


def test_no_line_is_wider_than_the_terminal() -> None:
    result = make_result(12, 5, 9, slow_rank=3)
    long = "layers.0." * 40 + "weight"
    buckets = Table(BucketRow, [dataclasses.replace(row, parameters=(long,)) for row in result.buckets])
    findings = Table(Finding, [Finding("x", "warning", "run", "word " * 60)])
    text = summary_text(dataclasses.replace(result, buckets=buckets, findings=findings))
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_most_exposed_bucket_comes_first_with_a_parameter() -> None:
    result = make_result(2, 6, 7)
    worst = summarize(result).worst
    assert worst is not None
    lines = summary_text(result).splitlines()
    first = lines[next(k for k, line in enumerate(lines) if line.startswith("Most exposed buckets")) + 2]
    assert first.split()[0] == str(worst.index)
    assert first.endswith(worst.parameters[-1])


def test_the_slowest_of_many_ranks_are_shown() -> None:
    text = summary_text(make_result(12, 5, 3, slow_rank=7))
    ranks = [line.split()[0] for line in text.split("Ranks", 1)[1].splitlines()[2:10]]
    assert ranks[0] == "7"
    assert "(the 8 slowest of 12)" in text


def test_the_evidence_of_the_overlap_is_said() -> None:
    assert "evidence backend" in summary_text(make_result())


def test_advice_has_a_place_of_its_own_at_the_end() -> None:
    result = make_result()
    advice = Finding("exposed-bucket", "warning", "run", "make the last bucket smaller")
    text = summary_text(dataclasses.replace(result, findings=Table(Finding, [advice, *result.findings])))
    assert text.rstrip().endswith("make the last bucket smaller")
    assert text.count("make the last bucket smaller") == 1


def test_a_name_cannot_command_the_terminal() -> None:
    result = make_result(1, 3, 2)
    name = "\x1b]0;owned\x07\x1b[2Jweight\n\r"
    buckets = Table(BucketRow, [dataclasses.replace(row, parameters=(name,)) for row in result.buckets])
    text = summary_text(dataclasses.replace(result, buckets=buckets, run_id="\x1b[31m"))
    assert "\x1b" not in text and "\r" not in text
    assert "\\x1b" in text


def test_an_empty_run_is_told_in_a_sentence() -> None:
    text = summary_text(empty_result())
    assert "No step was found" in text
    assert "nothing to break down" in text


def test_a_sentence_that_many_ranks_share_is_said_once() -> None:
    result = make_result()
    found = [Finding("x", "warning", f"rank {k}", "the same of all") for k in range(20)]
    found += [Finding(f"y{k}", "info", "run", f"other {k}") for k in range(5)]
    text = summary_text(dataclasses.replace(result, findings=Table(Finding, found)))
    assert text.count("the same of all (20 times)") == text.count("the same of all") == 1
    assert "other 4" in text and "more in the report" not in text


def test_where_an_earlier_bucket_is_charged_for_the_time_of_another_the_figures_say_so() -> None:
    """Else the second reads as neither exposed nor hidden."""
    result = make_result()
    assert CHARGED not in summary_text(result)
    rows = [
        dataclasses.replace(row, comm_ns=100, hidden_ns=3, exposed_ns=97, exposed_charged_ns=1 if row.index else 97)
        for row in result.buckets
    ]
    assert CHARGED in summary_text(dataclasses.replace(result, buckets=Table(BucketRow, rows)))


def test_what_all_steps_took_is_told_where_the_typical_one_hides_it() -> None:
    """Of the 18 rank-steps of 1 ms behind the first two, two take 21 ms: more than one in twenty."""
    result = make_result(2, 10, 2)
    rows = [dataclasses.replace(row, wall_ns=MS, window_ns=MS) for row in result.steps]
    alike = summary_text(dataclasses.replace(result, steps=Table(StepRow, rows)))
    assert "rank-steps after the first" not in alike
    slow = [dataclasses.replace(row, wall_ns=21 * MS, window_ns=21 * MS) if row.step == 9 else row for row in rows]
    assert "  all 18 rank-steps after the first: median 1.00 ms, p95 21.0 ms\n" in summary_text(
        dataclasses.replace(result, steps=Table(StepRow, slow))
    )


def test_steps_so_few_that_they_can_be_named_are() -> None:
    """Of steps 1 to 4 the two of middle length."""
    result = make_result(1, 5, 2)
    lengths = {0: 9, 1: 4, 2: 2, 3: 1, 4: 3}
    rows = [
        dataclasses.replace(row, wall_ns=lengths[row.step] * MS, window_ns=lengths[row.step] * MS)
        for row in result.steps
    ]
    text = summary_text(dataclasses.replace(result, steps=Table(StepRow, rows)))
    assert "(mean of 2 rank-steps: steps 2 and 4, the middle of the profiled steps)" in text
    assert "the middle half of the profiled steps" in summary_text(make_result(2, 12, 2))


def test_collectives_with_long_names_can_be_told_apart() -> None:
    result = make_result(1, 4, 2)
    ops = ("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor")
    rows = [dataclasses.replace(row, op=ops[row.seq % 3]) for row in result.collectives]
    lines = summary_text(dataclasses.replace(result, collectives=Table(CollectiveRow, rows))).splitlines()
    shown = {line[2:19].strip() for line in lines if "all_gat" in line or "reduce_s" in line}
    assert shown == {"all_gather…tensor", "all_gather…lesced", "reduce_sca…tensor"}


def test_who_wanted_a_collective_is_told_however_long_the_rest_is() -> None:
    result = make_result(1, 4, 2)
    long = "a_package_of_some_length." * 3
    rows = [
        dataclasses.replace(row, origin="fsdp", module=long + "block", site=long + "py:12 in f")
        for row in result.collectives
    ]
    lines = summary_text(dataclasses.replace(result, collectives=Table(CollectiveRow, rows))).splitlines()
    (told, *_) = [line for line in lines if line.startswith("    fsdp · ")]
    assert told.endswith("py:12 in f") and "…" in told and len(told) <= WIDTH
