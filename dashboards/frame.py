"""What is around the panels: a dashboard's name, its variables, links to the others, marks where alerts fired."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards.parts import SOURCE
from dashboards.queries import LAST_STEP, RECORD_TIME, RUN, series

TAG: Final = "ddptrace"
FIRING: Final = 'ALERTS{alertname=~"Ddptrace.*", alertstate="firing", ddptrace_run_id="$run"}'


def framed(uid: str, title: str, says: str) -> dashboard.Dashboard:
    """A dashboard without panels. Its link bar leads to all others, with the variables and the time kept."""
    link = (
        dashboard.DashboardLink("ddptrace").type(model.DashboardLinkType.DASHBOARDS).tags([TAG]).icon("external link")
    )
    fired = dashboard.AnnotationQuery().name("alerts").datasource(SOURCE).enable(True).icon_color("red").expr(FIRING)
    return (
        dashboard.Dashboard(title).uid(uid).description(says).tags([TAG]).time("now-1h", "now").refresh("30s")
        .timezone("browser").editable().tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(link.include_vars(True).keep_time(True).as_dropdown(False)).annotation(fired)
        .with_variable(_datasource()).with_variable(run_variable("run", "Run"))
    )  # fmt: skip


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def run_variable(name: str, label: str, *, other_than: str = "") -> dashboard.QueryVariable:
    """The runs that left records in the dashboard's time, the newest first: that one is chosen."""
    return (
        dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(f"query_result({newest_first(other_than)})")
        .regex('/ddptrace_run_id="([^"]+)"/').refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.DISABLED).description("run id, as in the run directory's manifest.json")
    )  # fmt: skip


def newest_first(other_than: str = "") -> str:
    records = series(RECORD_TIME, f'ddptrace_run_id!="{other_than}"')
    return f"sort_desc(max by (ddptrace_run_id) (max_over_time({records}[$__range])))"


def rank_variable() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("rank").label("Rank").datasource(SOURCE)
        .query(f"label_values({series(LAST_STEP, RUN)}, ddptrace_rank)")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.NUMERICAL_ASC)
        .multi(True).include_all(True).all_value(".*")
        .current(model.VariableOption(True, ["All"], ["$__all"]))
    )  # fmt: skip


def window_variable() -> dashboard.CustomVariable:
    """Counters move when steps end: a window must hold a few steps and a few scrapes."""
    chosen = model.VariableOption(True, "2m", "2m")
    lengths = [model.VariableOption(length == "2m", length, length) for length in LENGTHS]
    says = "what lines are means over; choose it longer than a few steps"
    return (
        dashboard.CustomVariable("window")
        .label("Averaged over")
        .values(",".join(LENGTHS))
        .current(chosen)
        .options(lengths)
        .description(says)
    )


LENGTHS: Final = ("1m", "2m", "5m", "15m", "1h")
