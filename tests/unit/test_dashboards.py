"""What is committed in dashboards/ is what its code makes, whole, and asks for nothing that the metrics do not have."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import made
from dashboards.perfetto_commands import TITLES
from ddptrace.cli.export import SCRAPED_S
from ddptrace.telemetry.common_attributes import RANK, RUN_ID
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, Kind
from ddptrace.telemetry.metrics.prometheus import label_of, name_of
from ddptrace.view import site
from tests.conftest import need
from tests.grafana import DASHBOARDS, NAMES, loaded, panels, path, queries, rules

BUILT_IN = {"__range", "__interval", "__rate_interval", "__all"}
STABLE = {
    "dev.perfetto.AddDebugSliceTrack", "dev.perfetto.CollapseTracksByRegex", "dev.perfetto.RunQueryAndShowTab",
    "dev.perfetto.AddDebugSliceTrackWithPivot",
}  # fmt: skip
"""Commands that Perfetto promises to keep, of those that are used here."""


def test_what_is_committed_is_what_the_code_makes() -> None:
    stale = [file.name for file, text in made() if file.read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m dashboards.build"


def test_every_alert_links_to_its_runbook() -> None:
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules() if "alert" in rule}
    headings = re.findall(r"^## (\w+)$", (DASHBOARDS / "RUNBOOKS.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert list(alerts) == headings
    assert all(url.endswith(f"/dashboards/RUNBOOKS.md#{alert.lower()}") for alert, url in alerts.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_its_number_means_and_has_a_unit(name: str) -> None:
    for panel in panels(name):
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] not in ("table", "heatmap"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("name", NAMES)
def test_every_column_of_a_table_has_a_unit_and_is_sorted_by_one_that_is_there(name: str) -> None:
    for panel in (one for one in panels(name) if one["type"] == "table"):
        columns = {entry["matcher"]["options"] for entry in panel["fieldConfig"]["overrides"]}
        merge, organize, *sort = panel["transformations"]
        assert merge["id"] == "merge" and columns <= set(organize["options"]["renameByName"].values())
        assert {entry["options"]["sort"][0]["field"] for entry in sort} <= columns


@pytest.mark.parametrize("name", NAMES)
def test_panels_are_numbered_apart_and_do_not_cover_each_other(name: str) -> None:
    every = loaded(name)["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    for one, other in itertools.combinations([panel["gridPos"] for panel in every], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in every)


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_that_a_dashboard_uses_is_one_that_it_has(name: str) -> None:
    told = json.dumps(loaded(name))
    used = set(re.findall(r"\$\{?(\w+)", told)) - BUILT_IN
    assert used == {one["name"] for one in loaded(name)["templating"]["list"]}


def test_the_dashboards_lead_to_each_other_and_have_addresses_of_their_own() -> None:
    assert len({loaded(name)["uid"] for name in NAMES}) == len(NAMES)
    for name in NAMES:
        (link,) = loaded(name)["links"]
        assert link["type"] == "dashboards" and link["includeVars"] and set(link["tags"]) <= set(loaded(name)["tags"])


def told_names() -> set[str]:
    """Every series and label that the metrics have in Prometheus."""
    names = {label_of(RUN_ID), label_of(RANK)}
    for one in INSTRUMENTS:
        ends = ("_bucket", "_sum", "_count") if one.kind is Kind.HISTOGRAM else ("",)
        names |= {name_of(one) + end for end in ends} | set(map(label_of, one.attributes))
    return names


def test_no_query_asks_for_a_metric_or_label_that_is_not_there() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = [query.expression for query in queries()] + [rule["expr"] for rule in rules()]
    words = {word for one in asked for word in re.findall(r"(?<!:)\bddptrace_\w+(?!:)\b", re.sub(r'"[^"]*"', "", one))}
    assert words - told_names() == set()
    assert {word for one in asked for word in re.findall(r"\b\w+:ddptrace_\w+:\w+", one)} <= recorded


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    need(program, "promtool (apt-get install prometheus)")
    done = subprocess.run(
        [str(program), *arguments], cwd=path("prometheus"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules() -> None:
    assert f"SUCCESS: {len(list(rules()))} rules found" in promtool("check", "rules", "rules.yml")


def test_alerts_fire_on_planted_trouble_and_are_silent_without() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")


def test_a_broken_rule_makes_its_tests_fail(tmp_path: Path) -> None:
    for name in ("rules.yml", "rules_test.yml"):
        text = path("prometheus", name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("group_right () run_rank", "group_right () 2 * run_rank"))
    program = shutil.which("promtool")
    need(program, "promtool (apt-get install prometheus)")
    assert program is not None
    done = subprocess.run([program, "test", "rules", "rules_test.yml"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 0


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    told = yaml.safe_load(path("prometheus", "rules_test.yml").read_text(encoding="utf-8"))
    cases = [case for test in told["tests"] for case in test.get("alert_rule_test", ())]
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


def test_every_alert_says_what_happened_and_what_to_do_next() -> None:
    for rule in rules():
        if "alert" in rule:
            said = rule["annotations"]
            assert "$labels.ddptrace_run_id" in said["summary"] and "$value" in said["description"]
            assert "Next" in said["description"], rule["alert"]


def test_perfetto_is_told_only_what_it_promises_to_understand() -> None:
    startup, macros = (json.loads(path("perfetto", name).read_text()) for name in ("startup.json", "macros.json"))
    commands = [*startup, *(command for macro in macros for command in macro["run"])]
    assert {command["id"] for command in commands} == STABLE
    assert all(isinstance(argument, str) for command in commands for argument in command["args"])
    assert len({macro["id"] for macro in macros}) == len(macros)


def test_every_query_for_perfetto_is_a_command_too() -> None:
    assert set(site.queries()) == set(TITLES)


# Collector, Prometheus, Tempo and Grafana -----------------------------------------------------------------------------


def composed(name: str) -> Any:
    return yaml.safe_load(path("compose", name).read_text(encoding="utf-8"))


def mounts() -> list[tuple[Path, str]]:
    """Here and there, of those that are no volumes."""
    every = [
        mount.split(":") for service in composed("compose.yaml")["services"].values() for mount in service["volumes"]
    ]
    return [((DASHBOARDS / "compose" / here).resolve(), there) for here, there, *_ in every if here.startswith(".")]


def test_every_path_that_compose_mounts_exists_and_every_volume_is_declared() -> None:
    content = composed("compose.yaml")
    assert [here for here, _ in mounts() if not here.exists()] == []
    named = {one.split(":")[0] for service in content["services"].values() for one in service["volumes"]}
    assert {name for name in named if not name.startswith(".")} == set(content["volumes"])


def test_images_have_exact_versions_and_ports_are_open_to_this_machine_alone() -> None:
    for service in composed("compose.yaml")["services"].values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_the_containers_are_told_to_read_is_mounted() -> None:
    services, there = composed("compose.yaml")["services"], {place for _, place in mounts()}
    read = [word.split("=", 1)[1] for one in services.values() for word in one.get("command", ()) if "file=" in word]
    read += composed("prometheus.yaml")["rule_files"]
    read += [word.split("=", 1)[1] for word in services["collector"]["command"]]
    (provider,) = composed("grafana/dashboards/ddptrace.yaml")["providers"]
    read.append(provider["options"]["path"])
    assert len(read) == 5 and set(read) <= there
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) in there and home.name == "overview.json"


def test_the_collector_keeps_our_names_and_hands_on_to_those_who_listen() -> None:
    collector, tempo = composed("collector.yaml"), composed("tempo.yaml")
    exporter = collector["exporters"]["prometheus"]
    assert "namespace" not in exporter and exporter["add_metric_suffixes"]
    assert exporter["resource_to_telemetry_conversion"] == {"enabled": False}
    (scraped,) = composed("prometheus.yaml")["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"collector:{exporter['endpoint'].split(':')[1]}"]}]
    listens = tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert collector["exporters"]["otlp/tempo"]["endpoint"] == f"tempo:{listens.split(':')[1]}"
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])


def test_a_job_that_ended_is_forgotten_before_it_counts_as_silent() -> None:
    (silent,) = [rule for rule in rules() if rule.get("alert") == "DdptraceJobSilent"]
    limit_s = int(re.search(r"age_seconds > (\d+)", silent["expr"])[1])  # type: ignore[index]
    minutes = composed("collector.yaml")["exporters"]["prometheus"]["metric_expiration"].removesuffix("m")
    assert max(SCRAPED_S, 60 * int(minutes)) < limit_s


def test_grafana_asks_those_who_answer() -> None:
    sources = {one["type"]: one for one in composed("grafana/datasources/ddptrace.yaml")["datasources"]}
    assert sources["prometheus"]["url"] == "http://prometheus:9090" and sources["prometheus"]["isDefault"]
    assert sources["tempo"]["url"] == f"http://tempo:{composed('tempo.yaml')['server']['http_listen_port']}"
    asked_every = sources["prometheus"]["jsonData"]["timeInterval"]
    assert asked_every == composed("prometheus.yaml")["global"]["scrape_interval"]


def test_compose_says_that_it_was_not_run() -> None:
    assert "NOT RUN" in path("compose", "compose.yaml").read_text(encoding="utf-8")
