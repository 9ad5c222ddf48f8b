"""What the standard variables ask for, asked without OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.delivery.targets import NO_DESTINATION, why_none
from ddptrace.telemetry.environment import (
    GRPC,
    HTTP,
    Wanted,
    metrics_every_s,
    prometheus_address,
    shown,
    switched_off,
    wanted,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
BOTH = Wanted(("otlp",), ("otlp",))


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, Wanted()),
        ({"OTEL_SERVICE_NAME": "a", "OTEL_EXPORTER_OTLP_ENDPOINT": " "}, Wanted()),
        (ENDPOINT, BOTH),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, Wanted()),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, Wanted((), ("otlp",))),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none, "}, Wanted(("otlp",), ())),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, Wanted(("otlp",), ())),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/v1/metrics"}, Wanted((), ("otlp",))),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, Wanted(("otlp",), ())),
        ({"OTEL_TRACES_EXPORTER": "console,otlp,console"}, Wanted(("console", "otlp"), ())),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, Wanted((), ("prometheus",))),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_grpc"}, Wanted(("otlp",), (), GRPC, HTTP)),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, Wanted(("otlp",), ("otlp",), GRPC, GRPC)),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
            Wanted(("otlp",), ("otlp",), GRPC, HTTP),
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, Wanted(("otlp",), ("otlp",), GRPC, GRPC)),
    ],
)
def test_the_standard_variables_say_what_is_exported(environ: dict[str, str], asked: Wanted) -> None:
    assert wanted(environ) == asked
    assert bool(asked) == bool(asked.traces or asked.metrics)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "jaeger"},
            "OTEL_TRACES_EXPORTER is 'jaeger', which ddptrace does not know; give otlp",
        ),
        ({"OTEL_TRACES_EXPORTER": "prometheus"}, "OTEL_TRACES_EXPORTER is 'prometheus', which"),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; give grpc",
        ),
        (
            ENDPOINT | {"OTEL_METRIC_EXPORT_INTERVAL": "10s"},
            "OTEL_METRIC_EXPORT_INTERVAL is '10s'; give milliseconds, a whole number above 0",
        ),
        (ENDPOINT | {"OTEL_METRIC_EXPORT_INTERVAL": "0"}, "OTEL_METRIC_EXPORT_INTERVAL is '0'; give milliseconds, a"),
        (
            {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "-1"},
            "OTEL_EXPORTER_PROMETHEUS_PORT is '-1'; give a number",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/v1/traces"},
            "is 'http://c:4318/v1/traces', and the path of each signal is added to it; remove /v1/traces",
        ),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_a_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(DdptraceError, match=sentence):
        wanted(environ)


@pytest.mark.parametrize("url", ["http://c:99999", "c:4318", "gopher://c:4318", "http://[::1", "http://", "http://a b"])
def test_an_endpoint_that_is_no_address_is_refused_with_the_name_of_its_variable(url: str) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        with pytest.raises(DdptraceError) as refused:
            wanted({name: url})
        assert (
            str(refused.value)
            == f"{name} is {url!r}, which is not the address of a collector; give one like http://localhost:4318"
        )


@pytest.mark.parametrize("url", ["collector:4317", "https://c:1", "dns:///c:4317", "[::1]:4317"])
def test_grpc_takes_addresses_without_a_scheme_and_those_that_it_resolves(url: str) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert wanted(asked) == Wanted(("otlp",), ("otlp",), GRPC, GRPC)
    with pytest.raises(DdptraceError, match="not the address of a collector; give one like http://localhost:4317"):
        wanted(asked | {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:99999"})


def test_what_is_not_used_needs_not_be_right() -> None:
    wrong = {"OTEL_METRIC_EXPORT_INTERVAL": "x", "OTEL_EXPORTER_PROMETHEUS_PORT": "x"}
    assert wanted(ENDPOINT | wrong | {"OTEL_METRICS_EXPORTER": "none"}) == Wanted(("otlp",), ())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://c:4318/tenant", "http://c:4318/tenant"),
        ("http://bob:pw@c:4318/?api_key=s", "http://***@c:4318/?***"),
        ("bob:p/w@c:4317", "***@c:4317"),
        ("http://bob:p?w@c#x", "http://***@c?***"),
    ],
)
def test_what_may_be_secret_in_an_address_is_not_shown(url: str, told: str) -> None:
    assert shown(url) == told


@pytest.mark.parametrize(
    ("environ", "off"),
    [
        (ENDPOINT, None),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED=true"),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "None"},
         "OTEL_TRACES_EXPORTER=none and OTEL_METRICS_EXPORTER=none"),
    ],
)  # fmt: skip
def test_the_variables_that_switch_it_off_are_named(environ: dict[str, str], off: str | None) -> None:
    assert switched_off(environ) == off
    assert (NO_DESTINATION if off is None else f"the environment switches export off with {off}; unset it") in why_none(
        environ
    )


def test_where_prometheus_comes_and_how_often_metrics_go() -> None:
    assert prometheus_address({}) == ("localhost", 9464)
    said = {"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0", "OTEL_EXPORTER_PROMETHEUS_PORT": "9000"}
    assert prometheus_address(said) == ("0.0.0.0", 9000)
    with pytest.raises(DdptraceError, match="OTEL_EXPORTER_PROMETHEUS_PORT is 'x'; give a number"):
        prometheus_address({"OTEL_EXPORTER_PROMETHEUS_PORT": "x"})
    assert (metrics_every_s({}), metrics_every_s({"OTEL_METRIC_EXPORT_INTERVAL": "2500"})) == (10.0, 2.5)
    with pytest.raises(DdptraceError, match="OTEL_METRIC_EXPORT_INTERVAL is '-1'; give milliseconds"):
        metrics_every_s({"OTEL_METRIC_EXPORT_INTERVAL": "-1"})


PROGRAM = """
import sys
from ddptrace.telemetry.companion.companion import companion_for
from pathlib import Path
assert companion_for(Path('.'), Path('.'), 0, {'OTEL_SERVICE_NAME': 'a'}) is None
assert companion_for(Path('.'), Path('.'), 0, {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://c', 'LOCAL_RANK': '1'}) is None
import ddptrace.telemetry.delivery.targets, ddptrace.telemetry.spans.exporter
print(*sys.modules)
"""


def test_asking_takes_no_package_and_the_room_none_of_its_extra() -> None:
    def loaded(program: str) -> set[str]:
        return set(
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
        )

    asked = loaded(
        PROGRAM.replace("import ddptrace.telemetry.delivery.targets, ddptrace.telemetry.spans.exporter\n", "")
    )
    assert not asked & {"opentelemetry", "numpy", "grpc", "requests", "torch"}
    assert not loaded(PROGRAM) & {"opentelemetry.exporter", "grpc", "requests", "google.protobuf", "prometheus_client"}
