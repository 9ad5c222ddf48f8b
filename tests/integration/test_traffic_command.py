"""`ddptrace traffic` on trainings whose bytes are known by hand, some with a condition around no_sync() that is wrong.

The model of `programs/traffic.py` has 9640 bytes of parameters, and two ranks: of an all-reduce each sends its tensor
once (2 * 1/2).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.traffic.digest import KindDigest, TrafficReport, traffic_report
from tests.command_line import ddptrace_says
from tests.launch import torchrun

STEPS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traffic")
    torchrun("traffic.py", path)
    return path


def report_of(folder: Path, name: str) -> TrafficReport:
    return traffic_report(ddptrace.analyze(folder / name))


def by_origin(report: TrafficReport) -> dict[str | None, list[KindDigest]]:
    found: dict[str | None, list[KindDigest]] = {}
    for kind in report.kinds:
        found.setdefault(kind.origin, []).append(kind)
    return found


def test_plain_ddp_sends_its_gradients_once_per_step_and_nothing_else(folder: Path) -> None:
    report = report_of(folder, "plain")
    (kind,) = report.kinds
    assert (kind.op, kind.origin, kind.dtype, kind.group_size, kind.ranks) == (
        "all_reduce",
        "gradients",
        "float32",
        2,
        2,
    )
    assert (kind.nbytes_in, kind.nbytes_min, kind.nbytes_max) == (9640, 9640, 9640)
    assert (kind.sent_nbytes, kind.all_sent_nbytes) == (9640, 19280)
    assert kind.calls > 1  # several buckets, and the same bytes
    assert (report.steps, report.rank_steps) == ((1, 2, 3, 4), 8)
    (link,) = report.links
    assert (link.ranks, link.there_nbytes, link.back_nbytes) == ((0, 1), 9640, 9640)


def test_what_making_the_wrapper_sends_is_told_as_sent_once(folder: Path) -> None:
    once = report_of(folder, "plain").once
    parameters = [kind for kind in once if kind.origin == "construction" and kind.dtype == "float32"]
    assert [(kind.op, kind.nbytes_in) for kind in parameters] == [("broadcast", 9640)]
    assert {kind.origin for kind in once} == {"construction", "rebuild"}


@pytest.mark.parametrize(
    ("name", "backwards", "synchronised", "nbytes", "code"),
    [
        ("plain", 1, 1, 9640, None),
        ("accumulated", 3, 1, 9640, None),
        ("often", 3, 3, 28920, "synchronised-often"),
        ("never", 2, 0, 0, "synchronised-never"),
        ("early", 2, 1, 9640, "synchronised-early"),
        ("closure", 3, 3, 28920, None),
        ("halved", 1, 1, 4820, None),
        ("unused", 1, 1, 9928, None),  # an unused layer of 8 * 8 + 8 parameters is sent too
    ],
)
def test_gradients_seen_beside_those_expected_and_the_condition_that_is_wrong(
    folder: Path, name: str, backwards: int, synchronised: int, nbytes: int, code: str | None
) -> None:
    report = report_of(folder, name)
    (one,) = report.gradients
    assert (one.backwards, one.synchronised, one.nbytes) == (backwards, synchronised, nbytes)
    assert [finding.code for finding in report.findings] == ([] if code is None else [code])


def test_a_compressing_hook_is_why_half_the_bytes_are_sent(folder: Path) -> None:
    (one,) = report_of(folder, "halved").gradients
    assert (one.sent_ratio, one.hooks, one.dtypes) == (0.5, ("fp16_compress_hook",), ("float16",))


def test_buffers_and_the_map_of_unused_parameters_stand_beside_the_gradients(folder: Path) -> None:
    kinds = by_origin(report_of(folder, "unused"))
    # a mean and a variance of 32 float32 each, and one int64 that counts
    assert sum(kind.nbytes_in or 0 for kind in kinds["buffers"]) == 2 * 32 * 4 + 8
    (bitmap,) = kinds["unused-parameters"]
    assert (bitmap.nbytes_in, bitmap.dtype) == (6 * 4, "int32")  # six parameters
    assert sum(kind.nbytes_in or 0 for kind in kinds["gradients"]) == 9640 + 4 * (8 * 8 + 8)


def test_buffers_that_are_broadcast_go_from_rank_0_to_the_other(folder: Path) -> None:
    (link,) = report_of(folder, "unused").links
    both_ways, buffers = 9928 + 6 * 4, 2 * 32 * 4 + 8  # the gradients and the map; what a norm keeps
    assert (link.there_nbytes, link.back_nbytes, link.rooted_nbytes) == (both_ways + buffers, both_ways, 0)


def test_what_is_sent_in_every_second_step_varies_from_nothing_to_all(folder: Path) -> None:
    (kind,) = by_origin(report_of(folder, "varying"))["program"]
    assert (kind.nbytes_min, kind.nbytes_max, kind.nbytes_in, kind.calls) == (0, 1000, 500, 0.5)


def test_a_rank_that_sends_more_and_the_direction_in_which_it_goes(folder: Path) -> None:
    report = report_of(folder, "one_way")
    assert [rank.sent_nbytes for rank in report.ranks] == [9640 + 4000, 9640]
    (link,) = report.links
    assert (link.there_nbytes, link.back_nbytes) == (9640 + 4000, 9640)
    done = ddptrace_says("traffic", folder / "one_way")
    assert "Rank 0 sends most, 13.6 kB per step, and rank 1 least, 9.64 kB; all 2 together 23.3 kB." in done.stdout


def test_the_command_prints_tables_and_the_finding_and_writes_nothing(folder: Path) -> None:
    before = sorted((folder / "often").rglob("*"))
    done = ddptrace_says("traffic", folder / "often")
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "Collectives per rank and step (mean of 8 rank-steps after step 0)" in words
    assert "sent its gradients 3 times per update" in words
    assert max(map(len, done.stdout.splitlines())) <= 96
    assert sorted((folder / "often").rglob("*")) == before


def test_json_is_the_report_and_nothing_else(folder: Path) -> None:
    done = ddptrace_says("traffic", folder / "plain", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    assert set(told) == {
        "per", "steps", "rank_steps", "kinds", "once", "ranks", "uncounted", "links", "messages", "roots", "gradients",
        "rpcs", "reduces_on_host", "findings", "units",
    }  # fmt: skip
    assert [kind["nbytes_in"] for kind in told["kinds"]] == [9640]


def test_analyze_tells_the_wrong_condition_too(folder: Path) -> None:
    assert "synchronised-early" in {finding.code for finding in ddptrace.analyze(folder / "early").findings}


def test_a_run_that_is_not_there_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = ddptrace_says("traffic", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "nowhere" in done.stderr
