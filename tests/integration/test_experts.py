"""Experts on real ranks: a router that sends one of them three times as much as the other."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.experts.digest import layer_digests
from ddptrace.render.terminal import summary_text
from tests.launch import torchrun

ROW = 4 * 16
"""Bytes of one token."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("experts")
    torchrun("experts.py", out)
    return out


def test_each_pair_of_ranks_exchanges_what_the_router_decided(folder: Path) -> None:
    result = ddptrace.analyze(folder / "uneven")
    there, back = (2 * ROW, 6 * ROW), {0: (2 * ROW,) * 2, 1: (6 * ROW,) * 2}
    for rank in (0, 1):
        mine = [row for row in result.exchanges if row.rank == rank]
        assert [row.sent_nbytes for row in mine] == [there, back[rank], there, back[rank]] * 5
        assert [row.received_nbytes for row in mine] == [back[rank], there, back[rank], there] * 5
        assert [row.phase for row in mine] == ["forward", "forward", "backward", "backward"] * 5
        assert {row.step for row in mine} == set(range(5))


def test_the_imbalance_is_found_with_its_layer(folder: Path) -> None:
    result = ddptrace.analyze(folder / "uneven")
    worst = layer_digests(result)[0]
    assert worst.imbalance_ratio == pytest.approx(1.5, rel=0.01) and worst.largest_rank == 1
    layers = {row.layer for row in result.exchanges if row.step == 4}
    assert layers == {"1"}
    finding = next(finding for finding in result.findings if finding.code == "expert-imbalance")
    assert finding.where == "1" and "1.50 times the mean" in finding.message
    assert "All-to-alls  (bytes that a rank gets in a step)" in summary_text(result)


def test_a_balanced_router_is_not_blamed(folder: Path) -> None:
    result = ddptrace.analyze(folder / "even")
    assert {row.imbalance_ratio for row in result.exchanges} == {1.0}
    assert "expert-imbalance" not in {finding.code for finding in result.findings}
