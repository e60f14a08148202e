"""Report the forecasters by the cost of their plans on past traffic."""

from collections.abc import Iterator, Sequence

from planner.domain.forecaster_backtest.figures import Baseline, ForecasterFigures
from planner.domain.forecaster_backtest.replay import PERFECT
from planner.domain.kinds.backtest import BacktestResult
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Group,
    Head,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    TableColumns,
    table,
    table_section,
)
from planner.domain.reports.frame import basis_sections, window_text
from planner.domain.reports.tables import Tables


def report(result: BacktestResult, _: Tables) -> Report:
    """Return the report of ``backtest``."""
    window = result.frame.window
    # Forecasters at equal attainment come first, the cheapest at the top.
    methods = sorted(
        result.methods.values(), key=lambda row: (not row.equal, row.cost_usd or float("inf"))
    )
    return Report(
        title=result.frame.scenario,
        answer=result.verdict,
        about=f"{window_text(window)} · {result.method_words}",
        facts=tuple(_facts(result)),
        warnings=result.left_out,
        sections=(
            Section(
                "Forecasters at equal SLO attainment",
                (_chart(result, methods), _forecasters(result, methods)),
                "Forecasters",
            ),
            *table_section(
                "Policies without a forecast",
                result.baselines.values(),
                *BASELINE_COLUMNS,
                name="Baselines",
            ),
            *table_section("Forecast errors", methods, *ERROR_COLUMNS, group=Group.BASIS),
            *basis_sections(result.frame),
        ),
        clock=window.clock,
    )


ERROR_COLUMNS: TableColumns[ForecasterFigures] = (
    (Head("Forecaster"), lambda row: row.facts.method),
    (Head("Fitted model", width=2), lambda row: _first_model(row.facts.order)),
    (Head("WAPE", Form.SHARE), lambda row: row.facts.wape),
    (Head("Peak WAPE", Form.SHARE), lambda row: row.facts.peak_wape),
    (Head("Bias", Form.CHANGE), lambda row: row.facts.bias),
    (Head("Coverage of the 80% band", Form.SHARE), lambda row: row.facts.coverage80),
    (Head("Fit", Form.NUMBER, "s"), lambda row: row.facts.fit_seconds),
)
BASELINE_COLUMNS: TableColumns[Baseline] = (
    (Head("Policy", width=2), lambda row: row.label),
    (Head("Replicas", Form.COUNT), lambda row: row.instances),
    (Head("Cost", Form.NUMBER, "$"), lambda row: row.figures.cost_usd),
    (Head("GPU-hours", Form.NUMBER), lambda row: row.figures.gpu_hours),
    (Head("Starts", Form.NUMBER), lambda row: row.figures.starts),
    (Head("Attainment above target", Form.CHANGE), lambda row: row.figures.spare),
    (Head("Remark"), lambda row: row.word),
)


def _first_model(fitted_models: str) -> str:
    """Return the first of several models (joined by "; "), with the number of others, if any."""
    first, *others = fitted_models.split("; ")
    return f"{first} ({len(others)} more)" if others else first


def _facts(result: BacktestResult) -> Iterator[Fact]:
    """Yield the cheapest forecaster and its cost, with the cost of the oracle (perfect forecast).

    Nothing if no forecaster reaches equal attainment.
    """
    if result.best is None:
        return
    best = result.methods[result.best]
    plans_for = f"plans for {best.at}" if best.at else ""
    yield Fact("Cheapest forecaster", best.facts.method, note=plans_for)
    yield Fact("Cost", best.cost_usd, "$", note="at equal SLO attainment")
    yield Fact("Extra cost over the oracle", best.regret, form=Form.CHANGE)
    perfect = result.methods.get(PERFECT)
    if perfect is not None:
        yield Fact("Cost with a perfect forecast", perfect.cost_usd, "$")


def _forecasters(result: BacktestResult, methods: Sequence[ForecasterFigures]) -> Table:
    """Return a table with a row per forecaster; the cheapest is highlighted."""
    return table(
        methods,
        (Head("Forecaster", width=2), _name),
        (Head("Cost", Form.NUMBER, "$"), lambda row: row.cost_usd),
        (Head("GPU-hours", Form.NUMBER), lambda row: row.gpu_hours),
        (Head("Extra cost over the oracle", Form.CHANGE), lambda row: row.regret),
        (Head("Plans for", width=2), lambda row: row.at),
        (Head("Cost, tuned earlier", Form.NUMBER, "$"), lambda row: row.as_run_cost_usd),
        (
            Head("Attainment above target, tuned earlier", Form.CHANGE),
            lambda row: row.as_run_spare,
        ),
        marked=lambda row: row.facts.method == result.best,
        note="Equal attainment: tuned on the tested window. Tuned earlier: on earlier days, as in "
        "production.",
    )


def _name(row: ForecasterFigures) -> str:
    """Return the forecast method, marked if it uses future data or misses equal attainment."""
    remarks = (
        "oracle" if row.facts.method == PERFECT else "",
        "" if row.equal else "not at equal attainment",
    )
    return ", ".join(filter(None, (row.facts.method, *remarks)))


def _chart(result: BacktestResult, methods: Sequence[ForecasterFigures]) -> Chart:
    """Return the bar chart of each forecaster's cost, in dollars.

    A line across the chart is the cost of the cheapest policy without a forecast, if known.
    """
    names = tuple(row.facts.method for row in methods)
    costs_at_equal_attainment = tuple(row.cost_usd for row in methods)
    costs_tuned_earlier = tuple(row.as_run_cost_usd for row in methods)
    bars = (
        ("Equal attainment", costs_at_equal_attainment, Role.RECOMMENDED),
        ("Tuned earlier", costs_tuned_earlier, Role.MEASURED),
    )
    series = [
        Series(label, names, costs, role, Shape.BAR) for label, costs, role in bars if any(costs)
    ]
    baselines = result.baselines.values()
    priced = [(row.figures.cost_usd, row.label) for row in baselines if row.figures.cost_usd]
    if priced:
        usd, label = min(priced)
        series.append(Series(label, (names[0], names[-1]), (usd, usd), Role.BASELINE))
    return Chart("Cost by forecaster", Axis(), Axis(unit="$"), tuple(series))
