"""Small words for the dashboards: a time series, a number, a table, each of Prometheus queries."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
FULL, HALF, THIRD, QUARTER = 24, 12, 8, 6  # of a row's 24 columns


def series(
    title: str,
    unit: str,
    queries: Sequence[tuple[str, str]],
    *,
    width: int = HALF,
    what: str = "",
    stacked: bool = False,
    limit: float | None = None,
    top: float | None = None,
) -> timeseries.Panel:
    """A graph of queries, each with its legend. ``limit`` is drawn as a line; ``top`` is the axis' end."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(8)
        .span(width)
        .line_width(1.5)
        .fill_opacity(30 if stacked else 6)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if top is not None:
        panel = panel.max(top)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).draw_style(GraphDrawStyle.LINE)
    if limit is not None:
        panel = panel.thresholds(thresholds(("transparent", None), ("red", limit))).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.LINE)
        )
    for expression, legend in queries:
        panel = panel.with_target(query(expression, legend))
    return panel


def number(
    title: str, unit: str, expression: str, *steps: tuple[str, float | None], what: str = "", width: int = QUARTER
) -> stat.Panel:
    """The latest value, coloured by the step that it has reached: ``("red", None), ("green", 0.99)``."""
    return (
        stat.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
        .unit(unit)
        .height(4)
        .span(width)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(thresholds(*(steps or (("blue", None),))))
        .with_target(query(expression, "{{model}}"))
    )


def rows(title: str, unit: str, expression: str, *, what: str = "", width: int = FULL) -> table.Panel:
    """A table with a row for each series now."""
    ask = query(expression, "").instant().format(PromQueryFormat.TABLE)
    unwanted = {"Time": True, "__name__": True}
    return (
        table.Panel()
        .title(title)
        .description(what)
        .datasource(SOURCE)
        .unit(unit)
        .height(8)
        .span(width)
        .with_target(ask)
        .with_transformation({"id": "organize", "options": {"excludeByName": unwanted}})  # type: ignore[arg-type]
    )


def query(expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)


def thresholds(*steps: tuple[str, float | None]) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(color=color, value=value) for color, value in steps])
    )


def board(uid: str, title: str, what: str, variables: Sequence[tuple[str, str]]) -> dashboard.Dashboard:
    """An empty dashboard with the variables datasource, and ``(name, query)`` each; rollouts are marked."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(what)
        .tags(["preheat"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Preheat")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["preheat"])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .annotation(
            dashboard.AnnotationQuery()
            .name("Another bundle")
            .datasource(SOURCE)
            .enable(True)
            .icon_color("orange")
            .expr("group by (bundle) (preheat_bundle_info) unless group by (bundle) (preheat_bundle_info offset 1m)")
        )
    )
    for name, ask in variables:
        made = made.with_variable(
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .datasource(SOURCE)
            .query(ask)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )
    return made
