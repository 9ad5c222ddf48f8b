"""A real Prometheus server (Debian's), started by a test for its own targets and ended with it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import need

PATIENCE_S = 60.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""No proxy stands between a test and its own machine."""


@dataclass(frozen=True, slots=True)
class Sample:
    labels: dict[str, str]  # without `__name__`, `job` and `instance`
    value: float


class Prometheus:
    """A server that is up. `url`: without a path."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str, at_s: float | None = None) -> list[Sample]:
        """An instant query, as of now or of a Unix time: a vector, or one sample without labels of a scalar. Fails the
        test where the server refuses it."""
        found = self.api("query", query=expression, time=f"{time.time() if at_s is None else at_s:.3f}")
        if found["resultType"] == "scalar":
            return [Sample({}, float(found["result"][1]))]
        assert found["resultType"] == "vector", found["resultType"]
        return [Sample(_own(one["metric"]), float(one["value"][1])) for one in found["result"]]

    def by(self, expression: str, *labels: str, at_s: float | None = None) -> dict[Any, float]:
        """Values by these labels, by the label alone where it is one; none of them twice."""
        samples = self.query(expression, at_s)
        keys = [tuple(sample.labels.get(label, "") for label in labels) for sample in samples]
        assert len(set(keys)) == len(keys), f"{expression}: {keys}"
        return {
            key[0] if len(labels) == 1 else key: sample.value for key, sample in zip(keys, samples, strict=True)
        }  # fmt: skip

    def metadata(self) -> dict[str, dict[str, str]]:
        """By metric: type, help and unit, as scraped."""
        return {name: told[0] for name, told in self.api("metadata").items()}

    def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or firing, as the server tells them."""
        found: list[dict[str, Any]] = self.api("alerts")["alerts"]
        return found

    def wait_until_scraped(self, times: int = 1) -> float:
        """Until every target was scraped anew, so that what is served now is known; `times` in a row. The Unix time at
        which it is: a query as of then is not disturbed by a later scrape that fails on a busy machine."""
        for _ in range(times):
            since = time.time()
            (found,) = self.wait_for(f"(max(timestamp(up)) and min(timestamp(up)) > {since}) and min(up) == 1")
        return found.value

    def wait_for(self, expression: str, patience_s: float = PATIENCE_S) -> list[Sample]:
        """Until a query gives something."""
        deadline = time.monotonic() + patience_s
        while not (found := self.query(expression)):
            told = self.api("targets")["activeTargets"]
            assert time.monotonic() < deadline, f"nothing for {expression}; {[one['lastError'] for one in told]}"
            time.sleep(0.05)
        return found

    def api(self, path: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with DIRECT.open(address, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode(errors='replace')}") from None


@contextmanager
def prometheus(
    folder: Path, *targets: str, rules: Sequence[Path] = (), interval_s: float = 1.0
) -> Iterator[Prometheus]:
    """A server that keeps all it has in `folder` and scrapes these URLs, evaluating `rules` as often."""
    program = shutil.which("prometheus")
    need(program, "prometheus (apt-get install prometheus)")
    assert program is not None
    home = folder / "prometheus"
    home.mkdir(parents=True, exist_ok=True)
    config = home / "prometheus.json"  # JSON is YAML too
    config.write_text(json.dumps(_config(targets, rules, interval_s)))
    port = free_port()
    command = [
        program, f"--config.file={config}", f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    log = home / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=home, stdout=said, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _await_ready(url, process, log)
        yield Prometheus(url)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _config(targets: Sequence[str], rules: Sequence[Path], interval_s: float) -> dict[str, Any]:
    often = f"{round(interval_s * 1000)}ms"
    parts = [urllib.parse.urlsplit(target) for target in targets]
    return {
        "global": {"scrape_interval": often, "scrape_timeout": often, "evaluation_interval": often},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [
            {"job_name": f"ddptrace-{at}", "metrics_path": part.path or "/metrics", "scheme": part.scheme,
             "static_configs": [{"targets": [part.netloc]}]}
            for at, part in enumerate(parts)
        ],
    }  # fmt: skip


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with DIRECT.open(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)


def _own(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in ("__name__", "job", "instance")}
