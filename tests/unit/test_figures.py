"""The report's pictures as figures of plotly: the same marks, with a title, in the report's colours."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from made_device import make_device_result
from made_diff import QUANTITIES, made_side
from made_exchange import with_exchange
from made_meetings import met_result, with_all
from made_pipeline import with_pipeline
from plotly.graph_objects import Figure

import ddptrace
from ddptrace import figures
from ddptrace.analysis.diff.compare import compare
from ddptrace.analysis.diff.tables import Diff
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.device import ScopeRow
from ddptrace.analysis.tables.table import Table
from ddptrace.errors import DdptraceError
from ddptrace.figures.images import DARK, LIGHT
from ddptrace.render import report
from ddptrace.render.markup import figure_html
from tests.made import empty_result, make_result
from tests.unit.test_render_device_report import evil_device_result
from tests.unit.test_render_report import EVIL, evil_result

KEYS = {
    "buckets-by-rank": "buckets_by_rank",
    "scopes-module": "by_module",
    "scopes-annotation": "by_annotation",
    "scopes-operator": "by_operator",
}
"""Figures of the report whose function is called otherwise."""


def every_result() -> Result:
    """A run that has something of every kind."""
    device, met = make_device_result(4), with_exchange(with_pipeline(with_all(met_result(4))))
    scopes = [ScopeRow(0, kind, "name", 3, 100, 10, 5) for kind in ("module", "annotation", "operator")]
    return replace(met, ranks=device.ranks, streams=device.streams, scopes=Table(ScopeRow, scopes))


def compared(**more: Any) -> Diff:
    return compare(("a", "b"), made_side("before", 6, **more), made_side("after", 6, first_at=1, wire={0: 3}, **more))


def texts(value: Any) -> list[str]:
    """Every string of a figure."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    return [text for one in value for text in texts(one)] if isinstance(value, list | tuple) else [str(value)]


def test_every_figure_of_the_report_has_its_function() -> None:
    result = every_result()
    drawn = {figure.key: figure for figure in report.drawn(result, summarize(result))}
    found = figures.every(result)
    assert list(found) == [draw.__name__ for draw in figures.FIGURES]
    assert {KEYS.get(key, key) for key in drawn} == set(found)
    for key, figure in drawn.items():
        assert found[KEYS.get(key, key)].to_dict()["data"] == Figure(data=figure.data).to_dict()["data"]


def test_every_figure_that_is_drawn_stands_in_one_place_of_the_report() -> None:
    result = every_result()
    page = report.page(result)
    drawn = report.drawn(result, summarize(result))
    placed = {KEYS.get(figure.key, figure.key): page.count(figure_html(figure)) for figure in drawn}
    assert placed == {draw.__name__: 1 for draw in figures.FIGURES}


def test_all_public_functions_are_told() -> None:
    pictures = {draw.__name__ for draw in figures.FIGURES}
    assert set(figures.__all__) == pictures | {"diff", "diff_buckets", "diff_runs", "every", "write_images"}
    assert ddptrace.figures is figures


@pytest.mark.parametrize("draw", figures.FIGURES)
def test_a_run_without_anything_to_draw_is_told_in_a_sentence(draw: Callable[[Result], Figure]) -> None:
    with pytest.raises(DdptraceError, match=r"cannot draw '.+': .+"):
        draw(empty_result())


def test_of_a_run_with_nothing_to_draw_there_is_no_figure() -> None:
    assert figures.every(empty_result()) == {}


def test_a_figure_stands_alone_with_its_title_and_caption() -> None:
    figure = figures.timeline(make_result(2, 4, 3))
    assert "A typical step" in figure.layout.title.text
    assert "Numbers are bucket indices" in figure.layout.title.text
    assert figure.layout.height > 300


def test_colours_are_those_of_the_report() -> None:
    sheet = report.asset("report.css")
    light, dark = (re.search(rf"{start}[^}}]*", sheet) for start in (r"\A\s*:root", r"prefers-color-scheme: dark"))
    for block, look in ((light, LIGHT), (dark, DARK)):
        assert block is not None
        told = dict(re.findall(r"--(\w+): (#\w+);", block.group()))
        assert {name: told[name] for name in asdict(look)} == asdict(look)


@pytest.mark.parametrize("dark", [False, True])
def test_a_figure_is_light_or_dark(dark: bool) -> None:
    figure = figures.steps(make_result(1, 4, 2), dark=dark)
    look = DARK if dark else LIGHT
    assert figure.layout.template.layout.paper_bgcolor == look.card
    assert figure.layout.template.layout.font.color == look.ink


@pytest.mark.parametrize("result", [evil_result(), evil_device_result()])
def test_no_name_from_a_run_becomes_markup(result: Result) -> None:
    shown = " ".join(text for figure in figures.every(result).values() for text in texts(figure.to_dict()))
    assert not any(evil in shown for evil in EVIL)
    assert set(re.findall(r"<(\w+)", shown)) <= {"b", "br", "span", "extra"}


def test_figures_of_a_comparison() -> None:
    found = compared()
    drawn = [draw(found) for draw in (figures.diff, figures.diff_buckets, figures.diff_runs)]
    assert ["<b>Where the change is</b>" in drawn[0].layout.title.text, len(drawn[1].data)] == [True, 2]
    assert all("The step takes" in figure.layout.title.text for figure in drawn)
    assert max(drawn[0].data[0].y) == pytest.approx(found.step.change_ns / 1e6, rel=0.1)


def test_sides_without_a_bucket_in_common_are_told() -> None:
    found = compared(quantities=tuple(one for one in QUANTITIES if one.kind != "bucket"))
    with pytest.raises(DdptraceError, match="no bucket in common"):
        figures.diff_buckets(found)


def test_a_format_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(DdptraceError, match="'bmp': choose one of svg, png, pdf"):
        figures.write_images({}, tmp_path, "bmp")


def test_without_kaleido_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(DdptraceError, match=re.escape("pip install 'ddptrace[images]'")):
        figures.write_images({}, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()
