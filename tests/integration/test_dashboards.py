"""Every query of every panel, asked of a real Prometheus server that scraped real runs, and what it must answer.

Two runs are recorded: one in which rank 1 is late, and its baseline, in which nobody is. A third of their steps is told
before the first scrape, the rest bit by bit, so that rates have something to rise by.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dashboards.frame import newest_first
from ddptrace.live.batch import Losses
from ddptrace.telemetry.delivery.exports import totals_of
from ddptrace.telemetry.metrics.prometheus import serve
from ddptrace.telemetry.metrics.totals import Totals
from tests.grafana import NAMES, Query, expression, filled, loaded, path, queries, rules
from tests.launch import torchrun
from tests.played import NS, Played, Truth
from tests.prometheus import Prometheus, prometheus
from tests.sums import late_ns

STEPS, FIRST, PART = 60, 20, 8
LOST = 3
RANKS = (0, 1)


@dataclass(frozen=True, slots=True)
class Watched:
    """`whole`, `late`: of all steps that were told, and of those after the first scrape; of the run and its baseline.
    `at_s`: when all was scraped, and every query is asked; `window`: back to the first scrape exactly, so that nothing
    has to be extrapolated."""

    server: Prometheus
    run: Played
    baseline: Played
    at_s: float
    window: str

    @property
    def variables(self) -> dict[str, str]:
        return {
            "run": self.run.result.run_id, "baseline": self.baseline.result.run_id, "rank": ".*",
            "window": self.window, "__range": "1h", "shift": "1s", "datasource": "prometheus",
        }  # fmt: skip

    @property
    def whole(self) -> Truth:
        return Truth(self.run.result, range(STEPS))

    @property
    def past(self) -> Truth:
        return Truth(self.baseline.result, range(STEPS))

    @property
    def late(self) -> Truth:
        return Truth(self.run.result, range(FIRST, STEPS))

    def ask(self, dashboard: str, panel: str, letter: str = "A", *labels: str, nth: int = 0) -> dict[object, float]:
        """Values by these labels."""
        query = filled(expression(dashboard, panel, letter, nth=nth), self.variables)
        return self.server.by(query, *(f"ddptrace_{label}" for label in labels), at_s=self.at_s)

    def one(self, dashboard: str, panel: str, letter: str = "A", *, nth: int = 0) -> float:
        (value,) = self.ask(dashboard, panel, letter, nth=nth).values()
        return value


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    torchrun("late.py", folder / "baseline", "nothing", "--steps", STEPS)
    torchrun("late.py", folder / "run", "data", "--steps", STEPS, "--ms", 20)
    runs, totals = [Played.of(folder / name) for name in ("baseline", "run")], Totals()
    for at, run in enumerate(runs):
        run.identify(totals)
        run.tell(totals, range(FIRST))
        run.beat(totals, time.time_ns() + at)
    rules = path("prometheus", "rules.yml")
    with serve(totals, 0) as served, prometheus(folder, served.url, rules=[rules], interval_s=0.5) as server:
        began_s = server.wait_until_scraped()
        for begin in range(FIRST, STEPS, PART):
            for at, run in enumerate(runs):
                run.tell(totals, range(begin, begin + PART))
                run.beat(totals, time.time_ns() + at)
            server.wait_until_scraped()
        totals.lost(runs[1].result.run_id, 1, Losses(in_bursts=LOST))
        server.wait_for('ALERTS{alertname="DdptraceRecordsDropped", alertstate="firing"}')
        at_s = server.wait_until_scraped()
        yield Watched(server, runs[1], runs[0], at_s, f"{round((at_s - began_s) * 1000) + 1}ms")


@pytest.mark.parametrize("query", list(queries()), ids=str)
def test_every_query_of_every_panel_finds_something(watched: Watched, query: Query) -> None:
    # WHEN it is asked as Grafana does, with its variables filled in
    found = watched.server.query(filled(query.expression, watched.variables), watched.at_s)
    # THEN there are numbers, and each is one
    assert found and all(math.isfinite(sample.value) for sample in found)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_can_be_drawn_over_time(watched: Watched, name: str) -> None:
    for query in queries():
        if query.dashboard == name:
            found = watched.server.api(
                "query_range", query=filled(query.expression, watched.variables),
                start=f"{watched.at_s - 5}", end=f"{watched.at_s}", step="1",
            )  # fmt: skip
            assert found["resultType"] == "matrix" and found["result"], query


@pytest.mark.parametrize("name", NAMES)
def test_the_variables_offer_what_is_there(watched: Watched, name: str) -> None:
    variables = {one["name"]: one for one in loaded(name)["templating"]["list"]}
    told = watched.server.query(filled(newest_first(), watched.variables), watched.at_s)
    # the newest run is offered first
    runs = [watched.run.result.run_id, watched.baseline.result.run_id]
    assert [sample.labels["ddptrace_run_id"] for sample in told] == runs
    assert variables["run"]["query"] == f"query_result({newest_first()})"
    if "rank" in variables:
        (ranks,) = [variables["rank"]["query"].removeprefix("label_values(").split("}")[0] + "}"]
        offered = watched.server.by(filled(ranks, watched.variables), "ddptrace_rank", at_s=watched.at_s)
        assert set(offered) == {"0", "1"}
    if "baseline" in variables:
        others = variables["baseline"]["query"].removeprefix("query_result(").removesuffix(")")
        (other,) = watched.server.query(filled(others, watched.variables), watched.at_s)
        assert other.labels["ddptrace_run_id"] == watched.baseline.result.run_id


# What the numbers are -------------------------------------------------------------------------------------------------


def near(value: object) -> object:
    """What two doubles may differ by that come from the same integers by way of a server that stores doubles; and
    scrapes that are a millisecond off their time."""
    return pytest.approx(value, rel=1e-6)


def test_the_numbers_of_now_are_those_of_the_steps_since_the_first_scrape(watched: Watched) -> None:
    truth, one = watched.late, watched.one
    assert one("overview", "Step time") == near(truth.per_step_s("wall_ns"))
    assert one("overview", "Overlap") == near(truth.share("hidden_ns", "comm_ns"))
    assert one("overview", "Exposed communication") == near(truth.share("exposed_comm_ns", "window_ns"))
    assert one("overview", "Idle") == near(truth.share("idle_ns", "window_ns"))
    assert one("overview", "Ranks") == 2
    assert one("overview", "Missing") == LOST


def test_the_numbers_from_the_first_step_on_are_those_of_the_whole_run(watched: Watched) -> None:
    truth, one = watched.whole, watched.one
    assert one("overview", "Steps") == STEPS
    assert one("overview", "Step time", nth=1) == near(truth.per_step_s("wall_ns"))
    assert one("overview", "Overlap", nth=1) == near(truth.share("hidden_ns", "comm_ns"))
    assert one("overview", "Exposed communication", nth=1) == near(truth.share("exposed_comm_ns", "window_ns"))
    assert one("overview", "Idle", nth=1) == near(truth.share("idle_ns", "window_ns"))
    assert one("overview", "Host blocked") == near(truth.per_step_s("wait_ns"))


def test_breakdown_and_phases_of_a_step_are_those_of_the_tables(watched: Watched) -> None:
    truth = watched.late
    parts = ("compute", "exposed_comm", "exposed_memory", "idle")
    breakdown = {part: truth.per_step_s(f"{part}_ns") for part in parts}
    assert watched.ask("overview", "Breakdown of a step", "A", "part") == near(breakdown)
    assert sum(breakdown.values()) == pytest.approx(truth.per_step_s("window_ns"))
    phases = ("data", "forward", "backward", "optimizer", "other")
    assert watched.ask("overview", "Phases of a step", "A", "phase") == near(
        {phase: truth.per_step_s(f"{phase}_ns") for phase in phases}
    )


def test_what_is_told_by_rank_is_that_rank_s(watched: Watched) -> None:
    truth = watched.late
    assert watched.ask("overview", "Step time by rank", "A", "rank") == near(
        {str(rank): truth.per_step_s("wall_ns", rank=rank) for rank in RANKS}
    )
    assert watched.ask("overview", "Overlap by rank", "A", "rank") == near(
        {str(rank): truth.share("hidden_ns", "comm_ns", rank=rank) for rank in RANKS}
    )
    assert watched.ask("ranks", "Data wait", "A", "rank") == near(
        {str(rank): truth.per_step_s("data_ns", rank=rank) for rank in RANKS}
    )
    assert watched.ask("ranks", "Compute", "A", "rank") == near(
        {str(rank): truth.per_step_s("compute_ns", rank=rank) for rank in RANKS}
    )
    assert watched.ask("ranks", "Newest step", "A", "rank") == {"0": STEPS - 1, "1": STEPS - 1}
    assert watched.ask("overview", "What is missing", "A", "rank", "reason")["1", "burst"] == LOST


def test_one_rank_can_be_chosen(watched: Watched) -> None:
    only = watched.variables | {"rank": "(1)"}
    (found,) = watched.server.query(filled(expression("overview", "Step time"), only), watched.at_s)
    assert found.value == near(watched.late.per_step_s("wall_ns", rank=1))


def test_hidden_and_exposed_communication_add_up_to_all_of_it(watched: Watched) -> None:
    truth = watched.late
    found = watched.ask("overview", "Hidden and exposed communication of a step", "A", "overlap")
    assert found["hidden"] == near(truth.per_step_s("hidden_ns"))
    assert sum(found.values()) == near(truth.per_step_s("comm_ns"))


def lateness(truth: Truth) -> dict[str, float]:
    comm = {rank: truth.per_step_s("comm_ns", rank=rank) for rank in RANKS}
    step = truth.per_step_s("wall_ns")
    return {str(rank): (max(comm.values()) - own) / step for rank, own in comm.items()}


def test_the_late_rank_is_late_without_clocks_and_by_arrivals(watched: Watched) -> None:
    now, whole = lateness(watched.late), lateness(watched.whole)
    # absolute: the rank that communicates most is late by 0
    assert watched.ask("ranks", "Lateness now", "A", "rank") == pytest.approx(now, abs=1e-6)
    assert watched.ask("ranks", "Lateness from the run's first step on", "A", "rank") == pytest.approx(whole, abs=1e-6)
    assert watched.one("overview", "Latest rank") == pytest.approx(max(now.values()), abs=1e-6)
    # rank 1 sleeps 20 ms in each step
    assert whole["1"] > 0.1 > whole["0"]
    lost = watched.ask("ranks", "Lost to this rank", "A", "rank")
    assert lost["1"] > 0.01 > lost["0"]
    assert watched.ask("ranks", "Waits for others", "A", "rank")["0"] > 0.01
    assert sum(watched.ask("ranks", "Came last", "A", "rank").values()) == near(1)


def test_what_arrivals_cost_is_what_the_tables_say(watched: Watched) -> None:
    result = watched.run.result
    calls = {(row.rank, row.seq): row.step for row in result.collectives if row.part == 0}
    met = [match for match in result.matches if match.last_rank is not None]
    steps = range(FIRST, STEPS)
    known = [one for one in met if calls[one.last_rank, one.seqs[one.ranks.index(one.last_rank)]] in steps]
    cost = {str(rank): late_ns([one for one in known if one.last_rank == rank]) / NS / len(steps) for rank in RANKS}
    assert watched.ask("ranks", "Lost to this rank", "A", "rank") == pytest.approx(cost, rel=1e-6, abs=1e-6)


def test_buckets_are_those_of_the_tables_the_most_exposed_among_them(watched: Watched) -> None:
    truth, indexes = watched.whole, sorted({row.index for row in watched.run.result.buckets})
    assert len(indexes) > 1
    keys = {index: ("0", str(index)) for index in indexes}
    labels = ("bucket_reducer", "bucket_index")
    executions = {index: len([row for row in truth.rows("buckets", index=index) if row.comm_ns]) for index in indexes}
    assert watched.ask("buckets", "Buckets", "A", *labels) == near(
        {keys[index]: truth.bucket("exposed_charged_ns", index) / NS / truth.count() for index in indexes}
    )
    assert watched.ask("buckets", "Buckets", "B", *labels) == near(
        {keys[index]: truth.bucket("comm_ns", index) / NS / executions[index] for index in indexes}
    )
    assert watched.ask("buckets", "Buckets", "C", *labels) == near(
        {keys[index]: truth.bucket("hidden_ns", index) / truth.bucket("comm_ns", index) for index in indexes}
    )
    newest = {row.index: row.nbytes for row in truth.rows("buckets")}
    assert watched.ask("buckets", "Buckets", "D", *labels) == {keys[index]: newest[index] for index in indexes}
    late = watched.late
    assert watched.ask("buckets", "Exposed communication of a step, by bucket", "A", *labels) == near(
        {keys[index]: late.bucket("exposed_charged_ns", index) / NS / late.count() for index in indexes}
    )


def test_calls_and_bytes_of_a_step_are_those_of_the_tables(watched: Watched) -> None:
    truth = watched.whole
    wanted = {(row.op, row.group) for row in truth.rows("traffic")}
    labels = ("collective_op", "collective_group")
    assert watched.ask("buckets", "Collectives of a step", "A", *labels) == near(
        {(op, group): truth.total("traffic", "calls", op=op, group=group) / truth.count() for op, group in wanted}
    )
    assert watched.ask("buckets", "Collectives of a step", "B", *labels) == near(
        {(op, group): truth.total("traffic", "nbytes_in", op=op, group=group) / truth.count() for op, group in wanted}
    )


def test_one_run_against_another_is_both_and_their_difference(watched: Watched) -> None:
    run, past, one = watched.whole, watched.past, watched.one
    step, before = run.per_step_s("wall_ns"), past.per_step_s("wall_ns")
    assert one("compare", "Step time: this run") == near(step)
    assert one("compare", "Step time: baseline") == near(before)
    assert one("compare", "Step time: change") == near(step / before - 1)
    overlap, was = run.share("hidden_ns", "comm_ns"), past.share("hidden_ns", "comm_ns")
    assert one("compare", "Overlap: change") == near(overlap / was - 1)
    assert one("compare", "Bytes of a step: change") == pytest.approx(0, abs=1e-9)
    assert watched.ask("compare", "Phases of a step", "B", "phase")["data"] == near(past.per_step_s("data_ns"))
    assert watched.ask("compare", "Lateness by rank", "B", "rank") == pytest.approx(lateness(past), abs=1e-6)
    labels = ("bucket_reducer", "bucket_index")
    more = {
        ("0", str(index)): (run.bucket("exposed_charged_ns", index) - past.bucket("exposed_charged_ns", index))
        / NS / (2 * STEPS)
        for index in {row.index for row in watched.run.result.buckets}
    }  # fmt: skip
    assert watched.ask("compare", "Exposed by bucket", "C", *labels) == pytest.approx(more, abs=1e-9)
    assert set(watched.ask("compare", "Both runs", "B", "run_id").values()) == {STEPS}


def test_alerts_that_fire_stand_on_the_overview(watched: Watched) -> None:
    assert watched.ask("overview", "Alerts that fire", "A", "rank") == {"1": 1}


# What is recorded by rules, and what is left when a run is over -------------------------------------------------------


@pytest.mark.parametrize("rule", [rule for rule in rules() if "record" in rule], ids=lambda rule: rule["record"])
def test_every_recording_rule_records_something(watched: Watched, rule: dict[str, Any]) -> None:
    labels = ",".join(f'{name}="{value}"' for name, value in rule.get("labels", {}).items())
    recorded = watched.server.query(f"{rule['record']}{{{labels}}}", watched.at_s)
    asked = watched.server.query(rule["expr"], watched.at_s)
    assert len(recorded) == len(asked) > 0
    assert all(math.isfinite(sample.value) for sample in recorded)


def test_what_rules_record_is_what_the_tables_say(watched: Watched) -> None:
    truth, ask = watched.late, watched.server.by
    mine = f'{{ddptrace_run_id="{watched.run.result.run_id}"}}'

    def of(name: str, *labels: str) -> dict[object, float]:
        return ask(f"{name}{mine}", *(f"ddptrace_{label}" for label in labels), at_s=watched.at_s)

    assert of("run:ddptrace_step_seconds:mean5m") == near({(): truth.per_step_s("wall_ns")})
    assert of("run:ddptrace_overlap:ratio5m") == near({(): truth.share("hidden_ns", "comm_ns")})
    assert of("run:ddptrace_exposed_comm:ratio5m") == near({(): truth.share("exposed_comm_ns", "window_ns")})
    assert of("run_rank:ddptrace_step_seconds:mean5m", "rank") == near(
        {str(rank): truth.per_step_s("wall_ns", rank=rank) for rank in RANKS}
    )
    assert of("run_rank:ddptrace_comm_seconds_per_step:mean5m", "rank") == near(
        {str(rank): truth.per_step_s("comm_ns", rank=rank) for rank in RANKS}
    )
    by_both = ask(f"run_rank:ddptrace_lateness:ratio5m{mine}", "estimate", "ddptrace_rank", at_s=watched.at_s)
    assert {rank: by_both["clock_free", rank] for rank in ("0", "1")} == pytest.approx(lateness(truth), abs=1e-6)
    assert by_both["arrivals", "1"] > 0.1 > by_both["arrivals", "0"]


def test_a_run_that_is_over_still_fills_what_is_told_from_its_first_step_on(watched: Watched, tmp_path: Path) -> None:
    # GIVEN a run that is exported after its end, so that its counters stand still
    run, whole = (
        watched.run,
        [one for one in queries() if "$__range" in one.expression and "$window" not in one.expression],
    )
    with (
        serve(totals_of(run.result, run.path), 0) as served,
        prometheus(tmp_path, served.url, interval_s=0.5) as server,
    ):
        at_s = server.wait_until_scraped(2)
        # WHEN these are asked, the run compared with itself
        variables = watched.variables | {"baseline": run.result.run_id}
        answers = {str(one): server.query(filled(one.expression, variables), at_s) for one in whole}
        # THEN each has an answer, and it is the whole run's
        assert len(answers) > 30 and [name for name, found in answers.items() if not found] == []
        step = server.query(filled(expression("overview", "Step time", nth=1), variables), at_s)
        assert [sample.value for sample in step] == [near(watched.whole.per_step_s("wall_ns"))]
