"""Computation and communication of known length give the known hidden and exposed time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ddptrace
from tests.launch import torchrun
from tests.programs.planted import BUSY_S, LAYERS, STEPS, WIRE_S

pytestmark = pytest.mark.alone

Span = tuple[int, int]
TOLERANCE_NS = 4_000_000  # two busy processes' scheduling, on bars of 20 and 50 ms


def overlap(span: Span, others: list[Span]) -> int:
    """By brute force; `others` are apart."""
    return sum(max(0, min(span[1], other[1]) - max(span[0], other[0])) for other in others)


def backwards(compute: list[Span]) -> list[Span]:
    """Return the backward of each step, from its first computation to its last.

    Between two layers a rank waits for a processor that others use; that time belongs to the backward, too.
    """
    steps = [compute[n : n + LAYERS] for n in range(0, len(compute), LAYERS)]
    return [(step[0][0], step[-1][1]) for step in steps]


@pytest.mark.parametrize("profiled", [False, True])
def test_hidden_and_exposed_time_of_every_bucket_are_those_that_were_planted(profiled: bool, tmp_path: Path) -> None:
    options = ["--profile"] if profiled else []
    torchrun("planted.py", tmp_path / "run", tmp_path / "truth", *options, ranks=1)
    result = ddptrace.analyze(tmp_path / "run")
    truth = json.loads((tmp_path / "truth").read_text())
    compute = [(b - result.zero_unix_ns, e - result.zero_unix_ns) for b, e in truth["compute"]]
    comm = sorted((b - result.zero_unix_ns, e - result.zero_unix_ns) for b, e in truth["comm"])

    chosen = {step.step for step in result.steps if step.profiled == profiled and step.step > 1}
    assert len(chosen) >= 4
    buckets = [bucket for bucket in result.buckets if bucket.step in chosen]
    assert len(buckets) == len(chosen) * LAYERS
    for bucket in buckets:
        (real,) = [span for span in comm if abs(span[0] - bucket.launch_at_ns) < BUSY_S * 1e9 / 2]
        assert bucket.comm_ns == pytest.approx(real[1] - real[0], abs=TOLERANCE_NS)
        least, most = overlap(real, compute), overlap(real, backwards(compute))
        assert least - TOLERANCE_NS < bucket.hidden_ns < most + TOLERANCE_NS
        assert bucket.hidden_ns + bucket.exposed_ns == bucket.comm_ns
    last = [bucket for bucket in buckets if bucket.index == LAYERS - 1]
    assert all(bucket.exposed_ns > 0.9 * WIRE_S * 1e9 for bucket in last), "the last bucket has nothing to hide under"
    assert max(chosen) < STEPS


def test_a_rank_that_is_late_is_named_instead_of_the_network(tmp_path: Path) -> None:
    torchrun("ddp.py", tmp_path / "run", "--steps", "12", "--late-s", "0.1")
    findings = {finding.code: finding for finding in ddptrace.analyze(tmp_path / "run").findings}
    assert findings["late-rank"].where == "rank 1"
    assert "exposed-bucket" not in findings
