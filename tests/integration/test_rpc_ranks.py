"""Who is which rank where a job has RPC workers: with a process group of some of them, without any launcher's word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptrace.load.run import read_run
from tests.programs.rpc_groups import SIZE, TRAINERS
from tests.self_launched import self_launched


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    self_launched("rpc_groups.py", folder)
    return folder


@pytest.mark.parametrize("mode", list(TRAINERS))
def test_each_worker_is_a_rank_of_its_own_whose_folder_outlives_the_overwriting_of_an_earlier_run(
    folder: Path, mode: str
) -> None:
    whole = sorted(path.name for path in (folder / mode / "run").iterdir())
    assert whole == ["manifest.json", *(f"rank-{rank:05d}" for rank in range(SIZE))]
    for rank in read_run(folder / mode / "run").ranks:
        assert [name for _, name in rank.rpc.workers] == [f"worker{rank.rank}"]
        assert rank.clean


@pytest.mark.parametrize("mode", list(TRAINERS))
def test_all_of_them_know_that_they_are_one_run_and_how_large_it_is(folder: Path, mode: str) -> None:
    run = read_run(folder / mode / "run")
    assert run.world_size == SIZE
    assert not {finding.code for finding in run.findings} & {"other-run", "rank-missing", "no-rank", "surface-failed"}
    metas = [json.loads(path.read_text()) for path in (folder / mode / "run").glob("rank-*/meta.json")]
    assert len(metas) == SIZE and {meta["run_id"] for meta in metas} == {run.manifest["run_id"]}
