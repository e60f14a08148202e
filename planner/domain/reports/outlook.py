"""Report the cost of the months ahead, and the GPUs to commit to."""

from collections.abc import Iterator

from planner.domain.formats import figure, signed_percent
from planner.domain.kinds.outlook import OutlookResult
from planner.domain.outlook.commitments import UseStep
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Head,
    Meaning,
    Note,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    Value,
    table,
)
from planner.domain.reports.frame import basis_sections, window_text
from planner.domain.reports.tables import Tables

TERMS = {"one_year": "1 year", "three_years": "3 years"}
COST_PARTS = {"on_demand_usd": "On demand", "spot_usd": "Spot", "starts_usd": "Starts"}


def report(result: OutlookResult, _: Tables) -> Report:
    """Return the report of ``outlook``."""
    window = result.frame.window
    return Report(
        title=result.frame.scenario,
        answer=result.headline,
        warnings=result.frame.warnings,
        about=f"One week represents all: {window_text(window)}, not simulated",
        facts=tuple(_facts(result)),
        sections=(
            Section("Cost by month", (_cost_chart(result), _months(result)), "Months"),
            *_commitments(result),
            *basis_sections(result.frame, result.basis),
        ),
        clock=window.clock,
    )


def _facts(result: OutlookResult) -> Iterator[Fact]:
    """Yield the totals over all months: cost, replicas, energy and carbon."""
    totals = result.totals
    note = f"{figure(totals.cost_usd / totals.days, '$')} per day"
    yield Fact("Planned cost, forecast a week ahead", totals.cost_usd, "$", note=note)
    committed_usd = totals.cost_committed_usd
    if committed_usd is not None:
        change = committed_usd / totals.cost_usd - 1 if totals.cost_usd else 0.0
        yield Fact(
            "Planned cost with commitments", committed_usd, "$",
            change=signed_percent(change), meaning=Meaning.SAVING,
        )  # fmt: skip
    planned = [row for row in result.months if row.mean_replicas is not None]
    if planned:
        first, last = planned[0], planned[-1]
        days = sum(row.days for row in planned)
        replica_days = sum((row.mean_replicas or 0.0) * row.days for row in planned)
        growth = ""
        if last.growth != first.growth:
            growth = f"{figure(first.mean_replicas)} to {figure(last.mean_replicas)} by month"
        peak = max(row.peak_replicas or 0 for row in planned)
        note = f"at most {peak:,}"
        yield Fact("Mean replicas", replica_days / days, change=growth, note=note)
    yield Fact("Planned energy", totals.energy_kwh / 1e3, "MWh", note="at rated load")
    yield Fact("Planned carbon", totals.carbon_kg / 1e3, "t CO2e", note="at rated load")


def _cost_chart(result: OutlookResult) -> Chart:
    """Return the chart of each month's cost: bars of its parts, and a line with commitments."""
    names: tuple[Value, ...] = tuple(row.month for row in result.months)
    series = []
    for key, label in COST_PARTS.items():
        costs = tuple(getattr(row, key) for row in result.months)
        if any((cost or 0.0) > 0 for cost in costs):
            series.append(Series(label, names, costs, shape=Shape.BAR))
    if result.recommended_commitments:
        committed = tuple(row.cost_committed_usd for row in result.months)
        series.append(Series("With commitments", names, committed, Role.RECOMMENDED))
    return Chart("Cost", Axis(), Axis(unit="$"), tuple(series), stacked=True)


def _months(result: OutlookResult) -> Table:
    """Return a table with a row per month."""
    grows = any(row.growth != 1 for row in result.months)
    return table(
        result.months,
        (Head("Month"), lambda row: row.month),
        (Head("Days", Form.NUMBER), lambda row: row.days),
        (Head("Demand", Form.NUMBER, "factor"), lambda row: row.growth if grows else None),
        (Head("Replicas, mean", Form.NUMBER), lambda row: row.mean_replicas),
        (Head("Replicas, peak", Form.COUNT), lambda row: row.peak_replicas),
        (Head("GPU-hours", Form.COUNT), lambda row: row.gpu_hours),
        (Head("Cost", Form.COUNT, "$"), lambda row: row.cost_usd),
        (Head("With commitments", Form.COUNT, "$"), lambda row: row.cost_committed_usd),
        (Head("Energy", Form.COUNT, "kWh"), lambda row: row.energy_kwh),
        (Head("Carbon", Form.COUNT, "kg CO2e"), lambda row: row.carbon_kg),
        (Head("No plan", width=3), lambda row: row.conflict),
        note="Monthly plans cover a week-ahead forecast and are not tuned on test days. A day "
        "of Plan and compare is tuned on them and costs less.",
    )


def _commitments(result: OutlookResult) -> Iterator[Section]:
    """Yield the section on the share of time that GPUs are in use, and on commitments to them.

    The recommended commitments are highlighted. Without committed prices, it has the price below
    which a commitment pays, by number of GPUs.
    """
    if not result.use:
        return
    if result.commitments:
        recommended = result.recommended_commitments
        advice = "A commitment pays if the GPU is in use for more of the time than the break-even."
        rows = table(
            result.commitments,
            (Head("GPU"), lambda row: row.gpu),
            (Head("Region"), lambda row: row.region),
            (Head("Term"), lambda row: TERMS[row.term]),
            (Head("Commit", Form.COUNT, "GPUs"), lambda row: row.gpus),
            (Head("Peak", Form.COUNT, "GPUs"), lambda row: row.peak_gpus),
            (Head("On demand", Form.NUMBER, "$/h"), lambda row: row.on_demand_usd_per_gpu_hour),
            (Head("Committed", Form.NUMBER, "$/h"), lambda row: row.committed_usd_per_gpu_hour),
            (Head("Break-even", Form.SHARE, "in use"), lambda row: row.pays_from),
            (Head("Cost on demand", Form.COUNT, "$"), lambda row: row.cost_on_demand_usd),
            (Head("Cost with it", Form.COUNT, "$"), lambda row: row.cost_usd),
            (Head("Saving", Form.COUNT, "$"), lambda row: row.saving_usd),
            marked=lambda row: row in recommended,
        )
    else:
        advice = "Commit to GPUs if the committed price is below the break-even price."
        rows = table(
            result.use,
            (Head("GPU"), lambda row: row.gpu),
            (Head("Region"), lambda row: row.region),
            (Head("GPUs", Form.COUNT), lambda row: row.gpus),
            (Head("Minimum share of time in use", Form.SHARE), lambda row: row.in_use),
            (
                Head("Break-even price", Form.NUMBER, "$/h"),
                lambda row: row.pays_below_usd_per_gpu_hour,
            ),
            note="Enter the committed prices of a region in the scenario for a recommendation.",
        )
    yield Section("GPU commitments", (Note(advice), _use_chart(result), rows), "Commitments")


def _use_chart(result: OutlookResult) -> Chart:
    """Return the chart of the share of time in use of the 1st, 2nd, ... GPU.

    It has a line per GPU type and region.
    """
    curves: dict[str, list[UseStep]] = {}
    for row in result.use:
        curves.setdefault(f"{row.gpu} in {row.region}", []).append(row)
    series = []
    for name, rows in curves.items():
        gpus = (0, *(row.gpus for row in rows))
        # A step holds until its end, so each share begins where the one before it ends.
        shares = (*(row.in_use for row in rows), rows[-1].in_use)
        series.append(Series(name, gpus, shares, shape=Shape.STEP))
    title = "Share of time in use"
    return Chart(title, Axis("GPUs"), Axis(form=Form.SHARE), tuple(series))
