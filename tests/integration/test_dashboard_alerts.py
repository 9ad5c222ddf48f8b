"""Alert rules against a real Prometheus server and a real run, in which trouble is planted half-way.

The rules are those that are committed, with all their times made short: minutes become seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ddptrace.live.batch import Losses
from ddptrace.telemetry.metrics.prometheus import serve
from ddptrace.telemetry.metrics.totals import Totals
from tests.grafana import path
from tests.launch import torchrun
from tests.played import Played, Truth
from tests.prometheus import Prometheus, prometheus

STEPS, PART = 120, 5
SHORT = {"[5m]": "[5s]", "[15m]": "[15s]", "offset 15m": "offset 15s", "[1h] offset 10m": "[60s] offset 4s"}
HANGS_NS = 400 * 10**9


def shortened(folder: Path) -> Path:
    content = yaml.safe_load(path("prometheus", "rules.yml").read_text(encoding="utf-8"))
    for rule in (rule for group in content["groups"] for rule in group["rules"]):
        for long, short in SHORT.items():
            rule["expr"] = rule["expr"].replace(long, short)
        if "for" in rule:
            rule["for"] = "1s"
    made = folder / "rules.yml"
    made.write_text(yaml.safe_dump(content), encoding="utf-8")
    return made


def firing(server: Prometheus) -> set[tuple[str, str]]:
    """Alerts by name and rank, "" where it is of the whole run."""
    return {
        (one["labels"]["alertname"], one["labels"].get("ddptrace_rank", ""))
        for one in server.alerts() if one["state"] == "firing"
    }  # fmt: skip


@pytest.fixture(scope="module")
def slowing(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("slowing")
    torchrun("slowing.py", folder / "run", "--steps", STEPS)
    return Played.of(folder / "run")


@pytest.fixture(scope="module")
def fired(slowing: Played, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[tuple[str, str]]]]:
    """What fires before the trouble, in it, at its end, and when the run has hung after it and lost records."""
    folder, totals = tmp_path_factory.mktemp("alerts"), Totals()
    slowing.identify(totals)
    with serve(totals, 0) as served:
        with prometheus(folder, served.url, rules=[shortened(folder)], interval_s=0.5) as server:
            before = played(slowing, totals, server, range(STEPS // 2))
            during = played(slowing, totals, server, range(STEPS // 2, STEPS))
            late = firing(server)
            slowing.beat(totals, time.time_ns() - HANGS_NS)
            totals.lost(slowing.result.run_id, 1, Losses(without_room=5, unread_steps=2))
            server.wait_for('ALERTS{alertname="DdptraceJobSilent", alertstate="firing"}')
            server.wait_for('ALERTS{alertname="DdptraceStepsUnread", alertstate="firing"}')
            yield {"before": before, "during": during, "late": late, "after": firing(server)}


def played(run: Played, totals: Totals, server: Prometheus, steps: range) -> set[tuple[str, str]]:
    """What fired at any time while these steps were told, a few at each scrape."""
    found: set[tuple[str, str]] = set()
    for begin in range(steps.start, steps.stop, PART):
        run.tell(totals, range(begin, begin + PART))
        run.beat(totals, time.time_ns())
        server.wait_until_scraped()
        found |= firing(server)
    return found


def test_the_trouble_that_is_planted_is_in_the_run(slowing: Played) -> None:
    before, during = (Truth(slowing.result, steps) for steps in (range(10, STEPS // 2), range(STEPS // 2, STEPS)))
    assert during.per_step_s("wall_ns") > 1.5 * before.per_step_s("wall_ns")
    assert during.share("hidden_ns", "comm_ns") < before.share("hidden_ns", "comm_ns") - 0.1


def test_a_rank_that_becomes_late_is_named_and_no_other(fired: dict[str, set[tuple[str, str]]]) -> None:
    assert {rank for name, rank in fired["late"] if name == "DdptraceRankLate"} == {"1"}


def test_steps_that_slow_down_and_overlap_that_falls_are_told(fired: dict[str, set[tuple[str, str]]]) -> None:
    assert ("DdptraceStepSlowed", "") in fired["during"]
    assert ("DdptraceOverlapFell", "") in fired["during"]


def test_a_job_that_hangs_and_lost_records_are_told_and_not_before(fired: dict[str, set[tuple[str, str]]]) -> None:
    planted = {("DdptraceJobSilent", ""), ("DdptraceRecordsDropped", "1"), ("DdptraceStepsUnread", "1")}
    assert planted <= fired["after"]
    assert not planted & (fired["before"] | fired["during"])
