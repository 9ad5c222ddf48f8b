"""Every traced run of a benchmark is analysed once, however many things are told of it: of one whose ranks `bench` in
`tests/benches.py` cannot start. It sees to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import ddptrace
from ddptrace.bench.conduct import experiment_in
from ddptrace.bench.experiment import Repeats
from ddptrace.bench.job import Job
from ddptrace.errors import DdptraceError
from ddptrace.findings import RECORDS_LOST

ONCE = Repeats(1, 1, 0)
ASKED: dict[str, dict[str, Any]] = {
    "scale": {"workload": "mlp"},
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """This process is the only rank."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    with (tmp_path / "said").open("w") as voice:
        yield Job.join(tmp_path, "gloo", voice)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ASKED)
def test_no_run_is_analysed_twice(name: str, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    analyze, seen = ddptrace.analyze, Counter[str]()

    def counting(path: Path, **how: Any) -> Any:
        seen[Path(path).name] += 1
        return analyze(path, **how)

    monkeypatch.setattr(ddptrace, "analyze", counting)
    experiment = experiment_in(f"ddptrace.bench.experiments.{name}")
    experiment.measure(job, experiment.options(ranks=(1,), backend="gloo", repeats=ONCE, **ASKED[name]))
    assert set(seen) == {path.name for path in (job.folder / "runs").iterdir()}
    assert set(seen.values()) == {1}, seen


def test_a_run_of_which_records_were_lost_is_not_told_of(job: Job) -> None:
    from ddptrace.bench import traced
    from ddptrace.capture import session

    def losing() -> None:
        session._current.recorder.note(RECORDS_LOST, "no room for more records")  # type: ignore[union-attr]

    with pytest.raises(DdptraceError, match=r"runs/lost is incomplete .*No room for more records"):
        traced.analyzed(job, {"lost": losing})
