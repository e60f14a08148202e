"""Report the trade-off of two objectives, such as cost and carbon.

A front is a list of plans, none of which is better than another in both objectives. Its knee is
the plan that gains most in one objective for little of the other.
"""

from collections.abc import Iterator, Sequence
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
from planner.domain.whatif.objectives import NAMES
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
    first, second = map(_planned, result.of)
    first_unit, second_unit = result.units
    if plan is None:
        return
    if not has_trade_off(front):
        usd = result.simulated_usd
        simulated = f", simulated {figure(usd, '$')}" if usd is not None else ""
        for i, value in enumerate((plan.first, plan.second)):
            basis = RATED.get(result.of[i], "")
            if result.of[i] == "cost":
                basis = basis or simulated
            yield Fact((first, second)[i], value, result.units[i], note=f"your plan{basis}")
        yield Fact("Planned peak replicas", plan.peak_instances, form=Form.COUNT)
        return
    highest_first, lowest_first = front[0], front[-1]
    labelled = [(f"{first}, your plan", plan), (f"{first}, lowest", lowest_first)]
    if result.knee is not None:
        labelled.append((f"{first}, plan {result.knee + 1}", front[result.knee]))
    for label, point in labelled:
        note = f"{result.of[1]} {figure(point.second, second_unit)}"
        yield Fact(label, point.first, first_unit, note=note)
    note = f"{result.of[0]} {figure(highest_first.first, first_unit)}"
    yield Fact(f"{second}, lowest", highest_first.second, second_unit, note=note)


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
    if own := result.as_planned:
        # To a reader, a plan with the same figures is the same plan.
        others = (row for row in plans if _texts(row.plan) != _texts(own))
        plans = [NamedPlan("Your plan", own), *others]
    knee = ""
    if result.knee is not None and has_trade_off(result.points):
        knee = f"Plan {result.knee + 1}"
    note = "Energy and carbon are at rated load."
    if len(plans) > 1:
        together = "A numbered plan decides all periods together"
        note = f"{together}, so it may beat your plan slightly. {note}"
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
    points = result.points
    first, second = result.of
    units = {name: UNITS[MEASURE[name]] for name in NAMES}

    def series(label: str, key: str, role: Role, shown: Sequence[FrontPlan] = points) -> Series:
        """Return the attribute ``key`` of plans over their second objective."""
        x = tuple(point.second for point in shown)
        y = tuple(getattr(point, key) for point in shown)
        shape = Shape.LINE if role in (Role.LIMIT, Role.RECOMMENDED) else Shape.POINTS
        return Series(label, x, y, role, shape)

    is_front = has_trade_off(points)
    drawn, own_role = [series("Other plans", "first", Role.BASELINE)], Role.OTHER
    if is_front:
        own_role = Role.BASELINE
        drawn = [
            series("Proven lower bound", "first_bound", Role.LIMIT),
            series("Planned", "first", Role.RECOMMENDED),
        ]
    if result.knee is not None and is_front:
        label = f"Plan {result.knee + 1} (largest gain)"
        drawn.append(series(label, "first", Role.MEASURED, [points[result.knee]]))
    if result.as_planned:
        drawn.append(series("Your plan, planned", "first", own_role, [result.as_planned]))
    axes = (
        Axis(_planned(second), units[second]),
        Axis(_planned(first), units[first], zero=False),
    )
    chart = Chart(f"{_planned(first)} against {second}", *axes, tuple(drawn))
    demand = "All plans serve the demand of your plan. They are not simulated."
    if result.as_planned is None:
        demand = "Planned once, before the window, for a forecast of all of it. Run it again."
    gpus = {row.replica.gpu for row in result.frame.capacity}
    if not is_front and len(gpus) == 1:
        demand += f" All replicas use {gpus.pop()}, so {first} and {second} rise together."
    return Report(
        title=result.frame.scenario,
        answer=result.headline,
        warnings=result.frame.warnings,
        facts=tuple(_front_facts(result)),
        why=demand,
        sections=(
            Section("Plans", (chart, _front_table(result))),
            *sources_section(result.frame.provenance, result.frame.notes),
        ),
    )
