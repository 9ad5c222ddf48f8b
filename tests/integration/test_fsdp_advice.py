"""FSDP2 on two hosts with a slow link: what is planted is found, with what it costs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.units.costs import FsdpCosts
from ddptrace.load.run import read_run
from ddptrace.schema import Phase
from tests.launch import PROGRAMS, environment

CASES = ("demand", "ahead", "kept", "large")

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def runs(hosts_tool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("runs")
    prefix = {"HOSTS_PREFIX": f"ddf{os.getpid() % 10000}"}
    common = {key: value for key, value in environment().items() if key != "GLOO_SOCKET_IFNAME"} | prefix
    subprocess.run([hosts_tool, "up", "2", "1gbit"], check=True, env=os.environ | prefix)
    try:
        ranks = [
            subprocess.Popen(
                [hosts_tool, "exec", str(rank), sys.executable, str(PROGRAMS / "hosts_fsdp.py"), str(path), *CASES],
                env=common | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29821"},
            )
            for rank in range(2)
        ]
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
        yield path
    finally:
        subprocess.run([hosts_tool, "down"], check=True, env=os.environ | prefix)


@cache
def costs(run: Path) -> FsdpCosts:
    return FsdpCosts(ddptrace.analyze(run), [analyze_rank(rank).facts for rank in read_run(run).ranks])


def test_gathers_on_demand_are_told_to_begin_earlier_and_then_cost_less(runs: Path) -> None:
    late = costs(runs / "demand").earlier(Phase.FORWARD)
    assert late is not None and late.blocks and late.distance == 0 and late.saved_ns > 0
    ahead = costs(runs / "ahead").earlier(Phase.FORWARD)
    assert ahead is None or ahead.exposed_ns < late.exposed_ns / 2


def test_parameters_that_are_gathered_again_are_told_to_stay_and_then_cost_nothing(runs: Path) -> None:
    again = costs(runs / "demand").kept()
    assert again is not None and again.units == 4 and again.nbytes == 4 * 2 * 512 * 512 * 4
    assert costs(runs / "kept").kept() is None


def test_a_unit_that_is_far_too_large_is_told_to_be_divided(runs: Path) -> None:
    large = costs(runs / "large").large()
    assert large is not None and large.name == "2" and large.nbytes == 8 * (large.median_nbytes or 0)
    assert set(large.parts) < {"2.up", "2.down"} and large.saved_ns > 0
    assert costs(runs / "ahead").large() is None


def test_the_advice_of_a_run_names_what_to_call(runs: Path) -> None:
    found = {one.code: one.message for one in ddptrace.analyze(runs / "large").findings if one.code.startswith("fsdp")}
    if found:  # silent where a rank is late, as on a crowded machine
        assert "Call fully_shard on 2." in found["fsdp-unit-size"]
