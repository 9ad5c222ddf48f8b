"""What all dashboards are put together from. Grafana 10 and newer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as values
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = model.DataSourceRef("prometheus", "${datasource}")
SECONDS, RATIO, BYTES, BYTES_PER_S, COUNT = "s", "percentunit", "decbytes", "Bps", "none"
GREEN, ORANGE, RED = "green", "orange", "red"
COLOURS: Final = {
    "compute": "green", "exposed_comm": "red", "exposed_memory": "purple", "idle": "#8a8a8a",
    "hidden": "green", "exposed": "red",
    "forward": "blue", "backward": "orange", "optimizer": "purple", "data": "yellow", "other": "#8a8a8a",
}  # fmt: skip

Steps = Sequence[tuple[float | None, str]]
"""Colours from a value on, the first from None: below all others."""

BAD_ABOVE_SHARE: Final[Steps] = ((None, GREEN), (0.05, ORANGE), (0.15, RED))
BAD_FROM_ONE: Final[Steps] = ((None, GREEN), (1, RED))


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and how its lines are called, with labels as `{{label}}`."""

    expression: str
    legend: str = "__auto"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: one instant query. `steps` colour its cells."""

    name: str
    expression: str
    unit: str = COUNT
    steps: Steps = ()


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [model.Threshold(value, colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _query(query: Query, letter: str, *, instant: bool = False) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter)
    return made.instant() if instant else made.range()


def number(title: str, says: str, expression: str, unit: str, steps: Steps = (), *, width: int = 3) -> stat.Panel:
    """The newest value, with its past behind it where it tells of a window; else it is asked for once."""
    look = values.BigValueColorMode.VALUE if steps else values.BigValueColorMode.NONE
    has_past = "$window" in expression
    graph = values.BigValueGraphMode.AREA if has_past else values.BigValueGraphMode.NONE
    return (
        stat.Panel().title(title).description(says).datasource(SOURCE).span(width).height(4).unit(unit)
        .thresholds(thresholds(steps or ((None, "text"),))).color_mode(look)
        .graph_mode(graph)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query(Query(expression), "A", instant=not has_past))
    )  # fmt: skip


def lines(title: str, says: str, unit: str, *queries: Query, steps: Steps = (), width: int = 12) -> timeseries.Panel:
    """`steps`: dashed lines at their values."""
    made = _over_time(title, says, unit, queries, width).fill_opacity(0)
    if steps:
        style = common.GraphThresholdsStyleConfig().mode(values.GraphTresholdsStyleMode.DASHED)
        made.thresholds(thresholds(steps)).thresholds_style(style)
    return made


def stack(title: str, says: str, unit: str, *queries: Query, width: int = 12) -> timeseries.Panel:
    """Areas on each other: the upper edge is the sum."""
    made = _over_time(title, says, unit, queries, width).fill_opacity(60).line_width(0)
    return made.stacking(common.StackingConfig().mode(values.StackingMode.NORMAL).group("A"))


def _over_time(title: str, says: str, unit: str, queries: Sequence[Query], width: int) -> timeseries.Panel:
    made = timeseries.Panel().title(title).description(says).datasource(SOURCE).span(width).height(8).unit(unit)
    legend = common.VizLegendOptions().display_mode(values.LegendDisplayMode.TABLE).show_legend(True)
    made.legend(legend.placement(values.LegendPlacement.BOTTOM).calcs(["mean", "lastNotNull"]))
    made.tooltip(common.VizTooltipOptions().mode(values.TooltipDisplayMode.MULTI).sort(values.SortOrder.DESCENDING))
    made.show_points(values.VisibilityMode.AUTO).axis_soft_min(0)
    for letter, query in zip("ABCDEF", queries, strict=False):
        made.with_target(_query(query, letter))
    for name, colour in COLOURS.items():
        made.override_by_regexp(rf"/^{name}\b/", [_value("color", {"mode": "fixed", "fixedColor": colour})])
    return made


def bars(title: str, says: str, unit: str, *queries: Query, steps: Steps = (), width: int = 12) -> bargauge.Panel:
    """One bar for each line of the queries, as it is at the end of the dashboard's time."""
    made = (
        bargauge.Panel().title(title).description(says).datasource(SOURCE).span(width).height(8).unit(unit).min(0)
        .thresholds(thresholds(steps or ((None, "blue"),))).orientation(values.VizOrientation.HORIZONTAL)
        .display_mode(values.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )  # fmt: skip
    for letter, query in zip("ABCDEF", queries, strict=False):
        made.with_target(_query(query, letter, instant=True))
    return made


def heat(title: str, says: str, unit: str, expression: str, *, width: int = 12) -> heatmap.Panel:
    """How often which value: `expression` gives a histogram's buckets by `le`."""
    query = _query(Query(expression, "{{le}}"), "A").format(PromQueryFormat.HEATMAP)
    made = heatmap.Panel().title(title).description(says).datasource(SOURCE).span(width).height(8)
    return made.show_tooltip().y_axis(heatmap.YAxisConfig().unit(unit)).with_target(query)


def cells(title: str, says: str, *columns: Column, sort_by: str = "", width: int = 24) -> table.Panel:
    """A row for each set of labels that the columns' queries give, the largest `sort_by` first."""
    made = table.Panel().title(title).description(says).datasource(SOURCE).span(width).height(9).show_header(True)
    letters = "ABCDEFGH"[: len(columns)]
    for letter, column in zip(letters, columns, strict=True):
        made.with_target(_query(Query(column.expression), letter, instant=True).format(PromQueryFormat.TABLE))
        made.override_by_name(column.name, _looks(column))
    names = {f"Value #{letter}": column.name for letter, column in zip(letters, columns, strict=True)}
    if len(columns) == 1:
        names["Value"] = columns[0].name
    made.with_transformation(model.DataTransformerConfig("merge", options={}))
    made.with_transformation(_organize(names | LABELS))
    if sort_by:
        sort = {"fields": {}, "sort": [{"field": sort_by, "desc": True}]}
        made.with_transformation(model.DataTransformerConfig("sortBy", options=sort))
    return made


LABELS: Final = {
    "ddptrace_rank": "rank", "ddptrace_run_id": "run", "ddptrace_bucket_reducer": "reducer",
    "ddptrace_bucket_index": "bucket", "ddptrace_collective_op": "operation", "ddptrace_collective_group": "group",
    "ddptrace_reason": "reason", "ddptrace_world_size": "world size", "ddptrace_backend": "backend",
    "ddptrace_torch_version": "torch", "host_name": "host",
}  # fmt: skip


def _organize(names: dict[str, str]) -> model.DataTransformerConfig:
    options = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
    return model.DataTransformerConfig("organize", options=options)


def _looks(column: Column) -> list[model.DynamicConfigValue]:
    looks = [_value("unit", column.unit)]
    if column.steps:
        steps = [{"value": value, "color": colour} for value, colour in column.steps]
        looks.append(_value("thresholds", {"mode": "absolute", "steps": steps}))
        looks.append(_value("custom.cellOptions", {"type": "color-background", "mode": "gradient"}))
    return looks


def _value(name: str, value: Any) -> model.DynamicConfigValue:
    return model.DynamicConfigValue(name, value)
