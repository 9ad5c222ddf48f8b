"""Peers and roots on four real ranks, by numbers that `programs/peers.py` tells, with the tap and without it."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.traffic.digest import TrafficReport, traffic_report
from ddptrace.analysis.traffic.peers import MessageDigest
from tests.launch import environment, torchrun

STEPS = 4
SURFACES = ("tap", "fallback")
OBJECT = len(pickle.dumps("activations"))

MESSAGES = {
    (0, 1): (1, 4000, 4000),
    (1, 2): (3, 4000 + 2 * 40, 4000 + 2 * 40),
    (2, 3): (3, 4000 + 8 + OBJECT, 4000 + 8 + OBJECT),  # the size of an object is one int64
    (3, 0): (1, 4000, 4000),
    (0, 2): (1, 2000, None),  # received from any source
    (3, 1): (1, 1200, 1200),
}
"""By hand: messages in a step, bytes sent and bytes received."""

WORLD, PAIR, THREE = (0, 1, 2, 3), (1, 3), (1, 2, 3)
ROOTS = {
    ("broadcast", THREE, 3): (1, 2 * 400),
    ("reduce", PAIR, 3): (1, 240),
    ("scatter", WORLD, 1): (1, 3 * 160),
    ("gather", WORLD, 2): (1, 3 * 200),
}
"""By hand: calls in a step, and what all ranks send together."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peers")
    torchrun("peers.py", path, ranks=4)
    return path


def report_of(run: Path) -> TrafficReport:
    return traffic_report(ddptrace.analyze(run))


def by_ends(messages: tuple[MessageDigest, ...]) -> dict[tuple[int, int], tuple[float, int | None, int | None]]:
    found = {(one.source, one.destination): (one.messages, one.sent_nbytes, one.received_nbytes) for one in messages}
    assert len(found) == len(messages)
    return found


@pytest.mark.parametrize("surface", SURFACES)
def test_every_call_names_its_peer_or_root_by_global_rank(folder: Path, surface: str) -> None:
    rows = [row for row in ddptrace.analyze(folder / surface).collectives if not row.part]
    rooted = {(op, rank, root) for op, ranks, root in ROOTS for rank in ranks}
    expected = Counter(dict.fromkeys(rooted, STEPS))
    for (source, destination), (messages, _, received) in MESSAGES.items():
        expected["send", source, destination] = STEPS * messages
        expected["recv" if received else "recv_any_source", destination, source if received else None] = (
            STEPS * messages
        )
    expected |= {("all_reduce", rank, None): STEPS for rank in WORLD}
    assert Counter((row.op, row.rank, row.peer) for row in rows) == expected


@pytest.mark.parametrize("surface", SURFACES)
def test_what_goes_from_rank_to_rank_in_a_step_is_what_was_sent_by_hand(folder: Path, surface: str) -> None:
    report = report_of(folder / surface)
    assert by_ends(report.messages) == MESSAGES
    assert [one.nbytes for one in report.messages] == sorted((sent for _, sent, _ in MESSAGES.values()), reverse=True)
    assert {finding.code for finding in report.findings} == ({"tap-failed"} if surface == "fallback" else set())


@pytest.mark.parametrize("surface", SURFACES)
def test_ops_with_a_root_are_told_by_root(folder: Path, surface: str) -> None:
    result = ddptrace.analyze(folder / surface)
    ranks = {group.group: group.ranks for group in result.groups}
    found = {(one.op, ranks[one.group], one.root): (one.calls, one.sent_nbytes) for one in traffic_report(result).roots}
    assert found == ROOTS


def test_a_pair_has_both_directions_and_larger_groups_what_is_sent_to_somebody(folder: Path) -> None:
    links = {link.ranks: link for link in report_of(folder / "tap").links}
    assert (links[PAIR].there_nbytes, links[PAIR].back_nbytes, links[PAIR].rooted_nbytes) == (240, 1200, 0)
    sent = {ranks: (link.message_nbytes, link.peers_unknown) for ranks, link in links.items()}
    assert sent == {
        WORLD: (4 * 4000 + 2000, False),
        PAIR: (1200, False),
        THREE: (2 * 40 + 8 + OBJECT, False),
    }


def test_of_a_rank_without_records_the_others_tell(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tap", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "rank-00003")
    report = report_of(tmp_path / "run")
    halves = {(2, 3): (3, MESSAGES[2, 3][1], None), (3, 0): (1, None, 4000), (3, 1): (1, None, 1200)}
    assert by_ends(report.messages) == MESSAGES | halves
    assert {one.nbytes for one in report.messages if one.source == 3} == {4000, 1200}
    assert "messages-differ" not in {finding.code for finding in report.findings}


def test_two_ends_that_disagree_are_told(folder: Path) -> None:
    found = [finding for finding in report_of(folder / "unequal").findings if finding.code == "messages-differ"]
    larger, missing = found
    assert (larger.severity, missing.severity) == ("warning", "info")
    assert "rank 0 → rank 1, 1 sent (40 bytes), 1 received (80 bytes)." in larger.message
    assert "rank 2 → rank 3, 0 sent (0 bytes), 1 received (120 bytes)." in missing.message


def test_the_command_prints_the_pairs_and_has_them_in_json(folder: Path) -> None:
    line = [sys.executable, "-m", "ddptrace", "traffic", str(folder / "tap")]
    said, as_json = (
        subprocess.run(
            [*line, *more], env=environment(), capture_output=True, text=True, timeout=120, check=True
        ).stdout
        for more in ((), ("--json",))
    )
    lines = [" ".join(one.split()) for one in said.splitlines()]
    assert "3 → 1 1 1.20 kB 1.20 kB" in lines and "0 → 2 1 2.00 kB -" in lines
    assert any(one.startswith("broadcast") and one.endswith("from rank 3 1 800 B") for one in lines)
    told = {(one["source"], one["destination"]): one["nbytes"] for one in json.loads(as_json)["messages"]}
    assert told == {ends: sent for ends, (_, sent, _) in MESSAGES.items()}
