"""What `ddptrace export` understands of its options before it reads anything."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ddptrace.cli.export import export
from ddptrace.errors import RunDirectoryError
from ddptrace.telemetry.delivery.otlp_json import OtlpJson


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("node-7:0", ("node-7", 0)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_metrics_are_served_to_this_machine_alone_unless_an_address_is_given(said: str, meant: tuple[str, int]) -> None:
    assert export.make_context("export", ["run", "--prometheus", said]).params["prometheus"] == meant


def test_a_file_is_closed_where_export_fails_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[OtlpJson] = []
    begin = OtlpJson.__init__
    monkeypatch.setattr(OtlpJson, "__init__", lambda self, path: (opened.append(self), begin(self, path))[1])
    done = CliRunner().invoke(export, [str(tmp_path / "nosuch"), "--otlp-json", str(tmp_path / "out.json")])
    assert isinstance(done.exception, RunDirectoryError)
    assert [one._file.closed for one in opened] == [True]


@pytest.mark.parametrize("said", ["", "nine", "0.0.0.0", "1:65536", "-1", "localhost:"])
def test_what_is_no_port_is_told(said: str) -> None:
    with pytest.raises(
        click.BadParameter, match=r"is neither a port nor HOST:PORT; give, for example, 9464 or 0\.0\.0\.0:9464"
    ):
        export.make_context("export", ["run", "--prometheus", said])
