"""Report the trade-off of two objectives, such as cost and carbon.

A front is a list of plans, none of which is better than another in both objectives. Its knee is
the plan that gains most in one objective for little of the other.
"""

from collections.abc import Iterator
from typing import NamedTuple

from planner.domain.columns import KG
from planner.domain.formats import figure
from planner.domain.kinds.pareto import FrontPlan, ParetoResult, has_trade_off
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Head,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    sources_section,
    table,
)
from planner.domain.reports.tables import Tables
from planner.inputs.scenario.settings import MEASURE, UNITS

SHOWN = ("cost", "gpu_hours", "energy", "carbon", "starts", "peak_instances")
STATUSES = {"optimal": None, "feasible": "not proven optimal"}  # others as they are
RATED = dict.fromkeys(("energy", "carbon"), ", at rated load")


def _planned(objective: str) -> str:
    """Return an objective's name for people, such as "Planned GPU-hours"."""
    return f"Planned {objective}".replace("gpu", "GPU")


def _front_facts(result: ParetoResult) -> Iterator[Fact]:
    """Yield the objectives of the present plan and, with a trade-off, the best of the front.

    Nothing if the result does not have the present plan.
    """
    front, plan = result.points, result.as_planned
    if plan is None:
        return
    if not has_trade_off(front):
        values = plan.first, plan.second
        for objective, value, unit in zip(result.of, values, result.units, strict=True):
            basis = RATED.get(objective, "")
            if objective == "cost" and result.simulated_usd is not None:
                basis = f", simulated {figure(result.simulated_usd, '$')}"
            yield Fact(_planned(objective), value, unit, note=f"your plan{basis}")
        yield Fact("Planned peak replicas", plan.peak_instances, form=Form.COUNT)
        return
    first, second = result.of
    first_unit, second_unit = result.units
    label = _planned(first)
    # Plans are in rising order of the second objective, and in falling order of the first.
    lowest_second, lowest_first = front[0], front[-1]
    labelled = [(f"{label}, your plan", plan), (f"{label}, lowest", lowest_first)]
    if result.knee is not None:
        labelled.append((f"{label}, plan {result.knee + 1}", front[result.knee]))
    for name, point in labelled:
        note = f"{second} {figure(point.second, second_unit)}"
        yield Fact(name, point.first, first_unit, note=note)
    note = f"{first} {figure(lowest_second.first, first_unit)}"
    yield Fact(f"{_planned(second)}, lowest", lowest_second.second, second_unit, note=note)


class NamedPlan(NamedTuple):
    """A plan of the front or the present plan, with its name in the report."""

    name: str
    plan: FrontPlan


def _texts(plan: FrontPlan) -> tuple[str, ...]:
    """Return the figures of a plan, rounded as a reader sees them."""
    return tuple(figure(getattr(plan, name)) for name in SHOWN)


def _front_table(result: ParetoResult) -> Table:
    """Return a table of the present plan and the numbered plans; the knee is highlighted."""
    plans = [NamedPlan(f"Plan {i}", point) for i, point in enumerate(result.points, start=1)]
    own = result.as_planned  # the present plan; None: not in the result
    if own is not None:
        # To a reader, a plan with the same figures is the same plan.
        others = (row for row in plans if _texts(row.plan) != _texts(own))
        plans = [NamedPlan("Your plan", own), *others]
    knee = ""
    if result.knee is not None and has_trade_off(result.points):
        knee = f"Plan {result.knee + 1}"
    note = "Energy and carbon: at rated load."
    if len(plans) > 1:
        together = "Numbered plans optimize all periods jointly"
        note = f"{together}, so they may be slightly better. {note}"
    return table(
        plans,
        (Head("Plan"), lambda row: row.name),
        (Head("Planned cost", Form.NUMBER, "$"), lambda row: row.plan.cost),
        (Head("Planned GPU-hours", Form.NUMBER), lambda row: row.plan.gpu_hours),
        (Head("Planned energy", Form.NUMBER, "kWh"), lambda row: row.plan.energy),
        (Head("Planned carbon", Form.NUMBER, KG), lambda row: row.plan.carbon),
        (Head("Planned starts", Form.COUNT), lambda row: row.plan.starts),
        (Head("Planned peak replicas", Form.COUNT), lambda row: row.plan.peak_instances),
        (Head("Status"), lambda row: STATUSES.get(row.plan.status, row.plan.status)),
        marked=lambda row: row.name == knee,
        note=note,
    )


def report(result: ParetoResult, _: Tables) -> Report:
    """Return the report of ``pareto``."""
    return Report(
        title=result.frame.scenario,
        answer=result.headline,
        warnings=result.frame.warnings,
        facts=tuple(_front_facts(result)),
        why=_demand_note(result),
        sections=(
            Section("Plans", (_front_chart(result), _front_table(result))),
            *sources_section(result.frame.provenance, result.frame.notes),
        ),
    )


def _demand_note(result: ParetoResult) -> str:
    """Return the demand that the plans serve, and why there is no trade-off with one GPU type."""
    simulated = "They are" if result.simulated_usd is None else "The numbered plans are"
    note = f"All plans serve the same demand. {simulated} not simulated."
    if result.as_planned is None:
        note = "Planned once, before the window, for a forecast of all of it. Run it again."
    gpus = {row.replica.gpu for row in result.frame.capacity}
    if not has_trade_off(result.points) and len(gpus) == 1:
        first, second = result.of
        note += f" All replicas use {gpus.pop()}, so {first} and {second} rise together."
    return note


def _front_chart(result: ParetoResult) -> Chart:
    """Return the chart of the first objective over the second, with its proven lower bound.

    Plans without a trade-off are points, without the bound.
    """
    points, your_plan = result.points, result.as_planned
    first_values = tuple(point.first for point in points)
    second_values = tuple(point.second for point in points)
    if has_trade_off(points):
        bounds = tuple(point.first_bound for point in points)
        own_role = Role.BASELINE
        drawn = [
            Series("Proven lower bound", second_values, bounds, Role.LIMIT),
            Series("Planned", second_values, first_values, Role.RECOMMENDED),
        ]
        if result.knee is not None:
            label = f"Plan {result.knee + 1} (largest gain)"
            drawn.append(_point(label, points[result.knee], Role.MEASURED))
    else:
        own_role = Role.OTHER
        drawn = [Series("Other plans", second_values, first_values, Role.BASELINE, Shape.POINTS)]
    if your_plan is not None:
        drawn.append(_point("Your plan, planned", your_plan, own_role))
    first, second = result.of
    x_axis = Axis(_planned(second), UNITS[MEASURE[second]])
    y_axis = Axis(_planned(first), UNITS[MEASURE[first]], zero=False)
    return Chart(f"{_planned(first)} against {second}", x_axis, y_axis, tuple(drawn))


def _point(label: str, plan: FrontPlan, role: Role) -> Series:
    """Return a plan as one point of the chart."""
    return Series(label, (plan.second,), (plan.first,), role, Shape.POINTS)
