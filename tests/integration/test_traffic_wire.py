"""The bytes that a rank is said to send, beside those that the network itself counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import ddptrace
from tests.conftest import need
from tests.launch import command, environment

CALLS = 3
TWICE_ON_GLOO = "reduce_scatter"  # Gloo makes an all-reduce of it
MORE_ON_GLOO = "reduce"


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_computed_are_those_that_the_loopback_carried(tmp_path: Path, ranks: int) -> None:
    need(
        os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"),
        "root, unshare and ip (apt-get install iproute2)",
    )
    # GIVEN a network that nobody else uses
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    program = command("traffic_wire.py", tmp_path, ranks=ranks)
    fixed = ["--nnodes=1", "--master-addr=127.0.0.1", "--master-port=29500"]
    line = [*alone, *(part for one in program for part in (fixed if one == "--standalone" else [one]))]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    carried: dict[str, float] = json.loads((tmp_path / "carried.json").read_text())
    # WHEN what all ranks sent is added up
    sent = dict.fromkeys(carried, 0.0)
    for row in ddptrace.analyze(tmp_path / "run").traffic:
        if row.op in sent:
            sent[row.op] += (row.sent_nbytes or 0) / CALLS
    # THEN it is what was carried, but for the ops for which Gloo sends more than it must
    assert carried.pop(TWICE_ON_GLOO) == pytest.approx(2 * sent.pop(TWICE_ON_GLOO), rel=0.01)
    assert 1.1 < carried.pop(MORE_ON_GLOO) / sent.pop(MORE_ON_GLOO) < 2.01
    assert sent == pytest.approx(carried, rel=0.01)
