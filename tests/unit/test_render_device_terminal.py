"""What the summary on the terminal says of devices, and of traces that others recorded."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from made_device import KERNELS, make_device_result, moved, without_steps

from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.device import RankRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.load.tables import Identity
from ddptrace.render.terminal import WIDTH, summary_text
from tests.made import make_result


def heading(text: str, begin: str) -> list[str]:
    """The lines of the section whose heading begins so, the heading first."""
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith(begin))
    return list(itertools.takewhile(bool, lines[first:]))


def test_a_recorded_run_is_named_by_its_id_and_a_foreign_one_by_its_files() -> None:
    assert summary_text(make_result(2, 3, 2)).startswith("ddptrace · run 5f1e5f1e · 2 ranks · 3 steps\n")
    assert summary_text(make_device_result(2, 3)).startswith("ddptrace · 2 ranks · 3 steps · 2 files\n")


def test_a_recorded_run_that_lost_its_id_or_had_no_collective_is_not_taken_for_a_foreign_one() -> None:
    result = make_result(2, 3)
    assert summary_text(dataclasses.replace(result, run_id="")).startswith("ddptrace · 2 ranks · 3 steps\n")
    silent = dataclasses.replace(make_device_result(2, 3), collectives=Table(CollectiveRow))
    quiet = summary_text(dataclasses.replace(silent, recorded=True))
    assert quiet.startswith("ddptrace · run 5f1e5f1e · 2 ranks · 3 steps\n")
    assert summary_text(silent).startswith("ddptrace · 2 ranks · 3 steps · 2 files\n")


def test_a_run_without_devices_has_no_section_on_them() -> None:
    text = summary_text(make_result(2, 3, 2))
    assert "Device time" not in text and "files" not in text


def test_the_sections_of_the_step_come_before_those_of_devices() -> None:
    text = summary_text(make_device_result(2, 3))
    order = [text.index(begin) for begin in ("Typical step", "\nRanks", "\nDevice time", "\nCollectives", "\nFindings")]
    assert order == sorted(order)


def test_device_time_is_told_for_both_populations_where_they_differ() -> None:
    # GIVEN two ranks, each with a copy of 500 ns that was queued before its window
    result = make_device_result(2, 1000)
    # WHEN for one of them both populations are made the same
    rows = [dataclasses.replace(row, with_launch=row.all) if row.rank == 0 else row for row in result.ranks]
    lines = heading(summary_text(dataclasses.replace(result, ranks=Table(RankRow, rows))), "Device time")
    # THEN only the other has a second line. Per step: 2.7 us compute, 2.1 exposed, 0.5 copies, and 0.9 of 3 hidden
    assert lines[2].split() == ["0", "10.0", "2.70", "2.10", "0.50", "4.70", "30", "%"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "launched", "launched:"]


def test_the_most_exposed_of_many_devices_are_shown() -> None:
    result = make_device_result(12, 2)
    worst = next(row for row in result.ranks if row.rank == 7)
    assert worst.all is not None
    more = dataclasses.replace(worst.all, exposed_ns=worst.all.exposed_ns + 5, idle_ns=worst.all.idle_ns - 5)
    rows = [dataclasses.replace(row, all=more) if row is worst else row for row in result.ranks]
    lines = heading(summary_text(dataclasses.replace(result, ranks=Table(RankRow, rows))), "Device time")
    assert "the 8 most exposed of 12 ranks" in lines[0]
    assert lines[2].split()[0] == "7"
    assert sum(line.split()[0].isdecimal() for line in lines[2:]) == 8


def test_without_steps_the_devices_take_the_place_of_the_breakdown() -> None:
    text = summary_text(without_steps(make_device_result(2, 3)))
    assert "nothing to break down" not in text
    assert text.splitlines()[2].startswith("61 % ")  # the headline comes first
    assert text.splitlines()[4].startswith("Device time")
    assert "no step was found" in text.splitlines()[4]


def test_the_most_exposed_collectives_are_told_with_what_identifies_them() -> None:
    result = make_device_result(2, 4)
    rows = [
        dataclasses.replace(row, group="a-group-with-a-very-long-name", group_size=2, busbw_bytes_per_s=12.3e9,
                            identity=Identity.ANNOTATION)
        for row in result.collectives
    ]  # fmt: skip
    lines = heading(summary_text(dataclasses.replace(result, collectives=Table(type(rows[0]), rows))), "Collectives")
    exposed = next(part.ns for part in summarize(result).parts if part.name == "exposed_comm")
    op, group, ranks, *size, calls, _, told, _, _, rate, unit = lines[2].split()
    assert (op, ranks, size, calls) == ("allreduce", "2", ["4.20", "MB"], "2")
    assert group.startswith("…") and (rate, unit) == ("12.3", "GB/s")
    assert float(told) == pytest.approx(exposed / 1e6, abs=0.05)
    assert lines[-1].split("; ")[-1] == "identified by annotation"


def test_scopes_are_told_by_module_where_a_trace_knows_modules() -> None:
    names = (*KERNELS, "\x1b[31mLinear_0" + "x" * 200, "## forward ##", "aten::linear")
    text = summary_text(make_device_result(2, 3, names))
    assert "Device time by module" in text and "annotation" not in heading(text, "Device time by module")[0]
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH
    # 8100 + 9000 + 1500 ns of three steps of 6200 ns
    assert heading(text, "Device time by")[2].split()[:4] == ["0.02", "100", "%", "15"]


def test_what_waits_for_the_host_is_advice() -> None:
    result = make_device_result()
    advice = Finding("launch-bound", "warning", "rank 1", "the host launches too slowly")
    found = [*result.findings, *(Finding(f"x{k}", "warning", "run", f"other {k}") for k in range(9)), advice]
    text = summary_text(dataclasses.replace(result, findings=Table(Finding, found)))
    assert text.rstrip().endswith("the host launches too slowly")


def test_ranks_that_share_no_time_are_said_to() -> None:
    result = moved(make_device_result(3), 2, 3 * 365 * 86_400 * 10**9)
    assert "2 stretches of time that do not overlap, over 1,095 days" in summary_text(result)
    assert "stretches" not in summary_text(make_device_result(3))


def test_the_line_of_a_library_stands_below_that_of_the_program() -> None:
    result = make_device_result(2, 4)
    through = "deepspeed/runtime/zero/stage3.py:1301 in Optimizer.reduce_scatter"
    for told, expected in ((through, {f"      through {through}"}), (None, set())):
        rows = [
            dataclasses.replace(row, origin="zero", site="train.py:41 in main", through=told)
            for row in result.collectives
        ]
        text = summary_text(dataclasses.replace(result, collectives=Table(type(rows[0]), rows)))
        lines = heading(text, "Collectives")
        assert "    zero · train.py:41 in main" in lines
        assert {line for line in lines if line.startswith("      through ")} == expected
        assert max(map(len, text.splitlines())) <= WIDTH


def test_no_line_on_devices_is_wider_than_the_terminal() -> None:
    result = make_device_result(3, 4)
    rows = [
        dataclasses.replace(row, op="reduce_scatter_tensor_coalesced", group="g" * 50, group_size=16384,
                            nbytes=row.nbytes * (1 + row.seq) ** 3, busbw_bytes_per_s=987.6e9, comm_ns=10**10,
                            exposed_charged_ns=10**10)
        for row in result.collectives
    ]  # fmt: skip
    text = summary_text(dataclasses.replace(result, collectives=Table(type(rows[0]), rows)))
    assert max(map(len, text.splitlines())) <= WIDTH
