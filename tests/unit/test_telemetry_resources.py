"""What a rank's spans and metrics are said to come from."""

from __future__ import annotations

import pytest

import ddptrace
from ddptrace.live.batch import Identity
from ddptrace.telemetry.common_attributes import resource_of

WHO = Identity("5f1e", 3, 0, {"host": "node7", "pid": 4242, "rank": 3})


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"):
        monkeypatch.delenv(name, raising=False)


def test_a_rank_is_an_instance_of_the_service_on_the_host_and_in_the_process_that_trained() -> None:
    told = resource_of(WHO).attributes
    assert {name: told[name] for name in told if not name.startswith("telemetry.")} == {
        "service.name": "ddptrace", "service.instance.id": "5f1e-3", "host.name": "node7", "process.pid": 4242,
        "ddptrace.run.id": "5f1e", "ddptrace.rank": 3, "service.version": ddptrace.__version__,
    }  # fmt: skip
    assert told["telemetry.sdk.language"] == "python"


def test_the_environment_names_the_service_and_not_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,service.instance.id=b,team=c,ddptrace.rank=0")
    told = resource_of(WHO).attributes
    assert [told[name] for name in ("service.name", "team", "service.instance.id", "ddptrace.rank")] == [
        "a", "c", "5f1e-3", 3,
    ]  # fmt: skip
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    assert resource_of(WHO).attributes["service.name"] == "training"


def test_the_name_of_the_run_and_the_job_are_the_ranks_own() -> None:
    meta = {"name": "gpt", "scheduler": "slurm", "job_id": "42", "pod": "gpt-0"}
    told = resource_of(Identity("5f1e", 0, 0, meta)).attributes
    names = ("ddptrace.run.name", "ddptrace.job.scheduler", "ddptrace.job.id", "k8s.pod.name")
    assert [told[name] for name in names] == ["gpt", "slurm", "42", "gpt-0"]


def test_what_is_not_known_of_a_process_is_left_out() -> None:
    told = resource_of(Identity("5f1e", 0, 0, {"pid": None})).attributes
    assert "host.name" not in told
    assert "process.pid" not in told
