"""Report what is behind a plan: its totals, what it cannot serve, and what limits it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from planner.domain.columns import KG
from planner.domain.formats import duration, figure
from planner.domain.planning.figures import (
    CapPlan,
    PlanFigures,
    PlanTotals,
    Span,
    Split,
)
from planner.domain.planning.marginal_values import MarginalValues
from planner.domain.planning.power_limits import PowerUse
from planner.domain.planning.purchases import DeferrableWork, Purchase, ShiftFigures
from planner.domain.report import (
    Axis,
    Block,
    Chart,
    Fact,
    Facts,
    Form,
    Group,
    Head,
    Note,
    Role,
    Section,
    Series,
    Shape,
    TableColumns,
    key_columns,
    step_series,
    table,
    table_section,
)

MOST_REGIONS = 3  # with a line each in the chart of deferrable work
SOLVERS = {"highs": "HiGHS", "cbc": "CBC"}
SINGULAR = {"GPUs": "GPU", "point": "percentile point"}  # of units


SPLIT_COLUMNS: TableColumns[Split] = (
    (Head("Model", width=2), lambda row: row.model),
    (Head("Region"), lambda row: row.region),
    (Head("Variant", width=2), lambda row: row.arrangement),
    (Head("Share, mean", Form.SHARE), lambda row: row.share),
    (Head("From", Form.SHARE), lambda row: row.least),
    (Head("To", Form.SHARE), lambda row: row.most),
    (Head("Periods", Form.COUNT), lambda row: row.periods),
)
MARKET_COLUMNS: TableColumns[Purchase] = (
    (Head("Region"), lambda row: row.region),
    (Head("GPU type", width=2), lambda row: row.gpu),
    (Head("Market"), lambda row: row.market.replace("_", "-")),
    (Head("Peak GPUs", Form.COUNT), lambda row: row.gpus),
    (Head("Paid", Form.NUMBER, "GPU-hours"), lambda row: row.gpu_hours),
    (Head("Used", Form.SHARE), lambda row: row.used_share),
    (Head("Price per GPU-hour", Form.NUMBER, "$"), lambda row: row.usd_per_gpu_hour),
    (Head("Cost", Form.NUMBER, "$"), lambda row: row.usd),
)
POWER_COLUMNS: TableColumns[PowerUse] = (
    (Head("Limit", width=3), lambda row: row.where),
    (Head("Allowed", Form.NUMBER, "kW"), lambda row: row.limit_kw),
    (Head("Planned peak", Form.NUMBER, "kW"), lambda row: row.peak_kw),
    (Head("Share", Form.SHARE), lambda row: row.share),
)


def plan_sections(plan: PlanFigures | None, *, simulated: bool = False) -> Iterator[Section]:
    """Yield the sections of a plan that are not empty; nothing for None.

    ``simulated``: the report has the cost and energy of a simulation, so those of the plan are
    left out.
    """
    if plan is None:
        return
    if plan.conflicts or plan.unserved:
        yield _conflicts(plan)
    if plan.totals is not None:
        yield from _totals(plan, plan.totals, simulated=simulated)
    yield from _constraints(plan)
    if plan.shift is not None:
        yield _shift(plan.shift, plan.unit)
    yield from table_section(
        "Reserved, on-demand and spot GPUs",
        plan.mix,
        *MARKET_COLUMNS,
        name="Markets",
        note="Without electricity and starts. Reserved GPUs are paid in every hour.",
    )
    yield from table_section(
        "Power limits",
        plan.power,
        *POWER_COLUMNS,
        name="Power",
        group=Group.PLAN,
        printed=True,
        note="At rated load, servers and PUE included.",
    )
    if plan.caps:
        yield _caps(plan.caps)
    yield from table_section(
        "Load split between variants",
        plan.split,
        *SPLIT_COLUMNS,
        name="Variants",
        group=Group.PLAN,
        note="Split of a model's load by capacity.",
    )
    if plan.worth is not None:
        yield _marginal_values_section(plan.worth)


def _shift(shift: ShiftFigures, unit: str) -> Section:
    """Return the section on when and where deferrable work is done, and what that saves.

    ``unit`` is the unit of the plan's objective, such as "$/h".
    """
    extra = None if shift.over_bound is None else shift.over_bound - 1
    facts = Facts((
        Fact("Saving", shift.saving, form=Form.SHARE, note="vs. unshifted work, no reserved GPUs"),
        Fact("Moved work", shift.moved_share, form=Form.SHARE, note="at least"),
        Fact("Linear bound", shift.bound, unit),
        Fact("Cost over the bound", extra, form=Form.SHARE, note="with whole replicas"),
    ))  # fmt: skip
    rows = table(
        shift.hours,
        (Head("Period", Form.MOMENT, width=2), lambda row: row.period),
        (Head("Region"), lambda row: row.region),
        (Head("Arriving", Form.NUMBER, "M input tokens"), lambda row: row.arrived / 1e6),
        (Head("Planned", Form.NUMBER, "M input tokens"), lambda row: row.planned / 1e6),
        (Head("Electricity", Form.NUMBER, "$/kWh"), lambda row: row.usd_per_kwh),
        (Head("Carbon", Form.NUMBER, "g/kWh"), lambda row: row.g_per_kwh),
    )
    return Section("Deferrable work", (facts, _work_chart(shift.hours), rows), "Deferrable work")


def _work_chart(work: Sequence[DeferrableWork]) -> Chart:
    """Return the chart of deferrable work by period: as it arrives, as planned, and by region."""
    starts = sorted({row.period for row in work})
    regions = [*dict.fromkeys(row.region for row in work)]

    def summed(label: str, role: Role, field: str, of_regions: Sequence[str]) -> Series:
        """Return a line of steps: by period, the sum of a field over regions."""
        sums = dict.fromkeys(starts, 0.0)
        for row in work:
            if row.region in of_regions:
                sums[row.period] += getattr(row, field)
        return step_series(label, starts, [*sums.values()], role)

    series = [
        summed("Arriving", Role.DEMAND, "arrived", regions),
        summed("Planned", Role.RECOMMENDED, "planned", regions),
    ]
    if 1 < len(regions) <= MOST_REGIONS:
        for region in regions:
            series.append(summed(f"Planned, {region}", Role.OTHER, "planned", [region]))
    return Chart("Deferrable work", Axis(), Axis("Input tokens"), tuple(series))


def _caps(plans: Sequence[CapPlan]) -> Section:
    """Return the section on GPU power caps: energy, cost and SLO attainment of a plan with each."""
    attained = Head("SLO attainment: {}", Form.SHARE)
    rows = table(
        plans,
        (Head("Power cap", width=2), _cap_name),
        (Head("Cost", Form.NUMBER, "$"), lambda row: row.usd),
        (Head("Planned energy", Form.NUMBER, "kWh"), lambda row: row.kwh),
        (Head("Simulated energy", Form.NUMBER, "kWh"), lambda row: row.simulated_kwh),
        *key_columns(plans, attained, lambda row: row.slo_attainment),
        (Head("GPU-hours", Form.NUMBER, "h"), lambda row: row.gpu_hours),
        (Head("Peak power", Form.NUMBER, "kW"), lambda row: row.peak_kw),
        (Head("Peak replicas", Form.COUNT), lambda row: row.replicas),
        (Head("TTFT", Form.NUMBER, "ms"), lambda row: row.ttft_ms),
        (Head("TPOT", Form.NUMBER, "ms"), lambda row: row.tbt_ms),
        note="Without power limits, from an empty fleet. TTFT and TPOT are at full load.",
    )
    blocks: list[Block] = [rows]
    feasible = [plan for plan in plans if plan.usd is not None and plan.kwh is not None]
    if len(feasible) > 1:
        energy, cost = tuple(plan.kwh for plan in feasible), tuple(plan.usd for plan in feasible)
        names = tuple(map(_cap_name, feasible))
        points = Series("Plans by cap", energy, cost, Role.RECOMMENDED, Shape.POINTS, notes=names)
        axes = Axis("Energy", "kWh"), Axis("Cost", "$")
        blocks.insert(0, Chart("Cost against energy", *axes, (points,)))
    return Section("Power caps", tuple(blocks), "Caps", group=Group.PLAN, printed=True)


def _cap_name(plan: CapPlan) -> str:
    """Return the power caps of a plan by role, such as "prefill 80%, decode none"."""
    caps = {"": plan.mixed, "prefill ": plan.prefill, "decode ": plan.decode}
    names = []
    for role, cap in caps.items():
        if cap:  # the plan has this role
            names.append(f"{role}{cap:.0%}" if cap < 1 else f"{role}none")
    return ", ".join(names)


def _conflicts(plan: PlanFigures) -> Section:
    """Return the section on demand that the plan cannot serve, and why."""
    blocks: list[Block] = [Note(sentence) for sentence in plan.conflicts]
    if plan.limited:
        blocks.append(Note(f"Method of the choice: {plan.limited}."))
    if plan.unserved:
        blocks.append(
            table(
                plan.unserved,
                (Head("Tier", width=2), lambda row: row.tier),
                (Head("Model", width=2), lambda row: row.model),
                (Head("Peak", Form.NUMBER, "input tokens/s"), lambda row: row.input_tps),
                (Head("Total", Form.NUMBER, "input tokens"), lambda row: row.input_tokens),
                (Head("Periods", Form.COUNT), lambda row: row.periods),
            )
        )
    # Unserved demand changes the decision, so it is shown outside the groups of details.
    if plan.limited or plan.unserved:
        return Section("Unserved demand", tuple(blocks), "Conflicts", None)
    return Section("Periods without a plan", tuple(blocks), "Conflicts", Group.PLAN)


def _totals(plan: PlanFigures, totals: PlanTotals, *, simulated: bool) -> Iterator[Section]:
    """Yield the section on the plan's cost, energy, carbon and changes over the window.

    For a ``simulated`` plan, it has only spare replicas, lent GPUs and cross-region overflow.
    """
    # A simulated plan starts each period with the replicas that its guard has added. What-ifs and
    # fronts plan without a guard, so these figures would differ from theirs.
    facts = []
    if not simulated:
        facts += [
            Fact("Planned cost", totals.usd, "$"),
            Fact("Planned GPU-hours", totals.gpu_hours),
            Fact("Planned energy", totals.kwh, "kWh", note="at rated load"),
            Fact("Planned carbon", totals.carbon_kg, KG),
            Fact("Embodied carbon", totals.embodied_kg, KG, note="of making the hardware"),
            Fact("Starts and stops", f"{totals.starts:,} and {totals.stops:,}"),
        ]
    if plan.lent_gpu_hours is not None:
        facts.append(Fact("Lent", plan.lent_gpu_hours, "GPU-hours"))
    blocks: list[Block] = [Facts(tuple(facts))] if facts else []
    if not simulated:
        solved = "all periods at once" if plan.periods == "all" else "period by period"
        blocks.append(Note(f"The optimizer's plan: least {plan.minimise}, {solved}."))
        blocks.append(Note(f"Energy: {totals.energy_basis}."))
    if plan.spare is not None:
        blocks.append(Note(plan.spare.sentence))
    if plan.rerouted:
        blocks.append(
            table(
                plan.rerouted,
                (Head("From"), lambda row: row.home),
                (Head("To"), lambda row: row.to),
                (Head("At peak", Form.NUMBER, "input tokens/s"), lambda row: row.input_tps),
                (Head("Share of its demand", Form.SHARE), lambda row: row.share),
                title="Cross-region overflow",
            )
        )
    if blocks:
        yield Section("Planned totals", tuple(blocks), "Totals", group=Group.PLAN)


def _constraints(plan: PlanFigures) -> Iterator[Section]:
    """Yield the section on the distance from the optimum, and on binding constraints."""
    solver = SOLVERS.get(plan.solver, plan.solver)
    solved = f"{solver}, {duration(plan.solve_seconds)}"
    gap_label = "Optimality gap"
    gap = Fact(gap_label, plan.gap, form=Form.SHARE, note="of the fleet's cost")
    blocks: list[Block] = [Facts((Fact("Plan", plan.status, note=solved), gap))]
    if plan.binding:
        note = "Ranges: over the periods in which the constraint binds."
        blocks.append(
            table(
                plan.binding,
                (Head("Constraint", width=5), lambda row: row.sentence),
                (Head("Periods", Form.COUNT), lambda row: row.periods),
                (Head("Replicas", width=2), lambda row: _span(row.replicas)),
                (Head("Demand", unit="input tokens/s", width=2), lambda row: _span(row.need_tps)),
                (
                    Head("Capacity", unit="input tokens/s", width=2),
                    lambda row: _span(row.served_tps),
                ),
                note=note,
            )
        )
    title = "Binding constraints"
    yield Section(title, tuple(blocks), "Constraints", group=Group.PLAN, printed=True)


def _span(values: Span) -> str:
    """Return the least and the most of a figure as text, such as "4 to 7"; "" for None."""
    return " to ".join(dict.fromkeys(f"{value:,.0f}" for value in values or ()))


def _marginal_values_section(worth: MarginalValues) -> Section:
    """Return the section on how much one more unit of each limit saves, in the dearest period.

    A limit is a number of GPUs, a power limit or a latency limit.
    """
    unit = worth.unit

    def saved_per_unit(row: Mapping[str, Any]) -> str | None:
        """Return the saving per unit of the limit, such as "$2 per GPU"."""
        if row["per_unit"] is None:
            return None
        return f"{figure(row['per_unit'], unit)} per {SINGULAR.get(row['unit'], row['unit'])}"

    limits = cast(Sequence[Mapping[str, Any]], worth.rows)
    rows = table(
        limits,
        (Head("Change", width=3), lambda row: row["what"]),
        (Head("Savings per hour", width=2),
         lambda row: "time limit reached" if row["saves"] is None else figure(row["saves"], unit)),
        (Head("Savings per unit and hour", width=2), saved_per_unit),
        (Head("Fractional replicas (linear relaxation)", width=2),
         lambda row: None if row["relaxation"] is None else figure(row["relaxation"], unit)),
        note="Whole replicas: from a second plan, within both solver gaps. Negative: higher cost.",
    )  # fmt: skip
    nothing = Note("No capacity limit binds, and no tier has a latency limit.")
    blocks = (rows,) if limits else (nothing,)
    return Section("Savings from looser limits", blocks, "Value", group=Group.PLAN, printed=True)
