"""Ranks that compute on the same device, as their meta.json tells it."""

from __future__ import annotations

import json
from pathlib import Path

from ddptrace.load.run_folder import open_folder

RUN, OTHER_RUN = "a" * 32, "b" * 32


def test_ranks_with_one_device_know_each_other(tmp_path: Path) -> None:
    devices = {0: "GPU-1", 1: "GPU-2", 2: "GPU-1", 3: None, 4: None, 5: "GPU-3", 6: "GPU-3"}
    runs = {6: OTHER_RUN}  # left from an earlier run
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": "1.11", "run_id": RUN}))
    for rank, device in devices.items():
        folder = tmp_path / f"rank-{rank:05d}"
        folder.mkdir()
        told = {"run_id": runs.get(rank, RUN)} | ({} if device is None else {"device_uuid": device})
        (folder / "meta.json").write_text(json.dumps(told))
    found = {one.rank: one.device_ranks for one in open_folder(tmp_path).ranks}
    assert found == {0: (0, 2), 2: (0, 2)} | dict.fromkeys((1, 3, 4, 5, 6), ())
