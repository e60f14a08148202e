"""Add the constraint families of the program, one function each, with words for conflicts.

Symbols of seed 004, section 5: theta is the capacity of an instance in input tokens/s, rho the
demand, epsilon the local share. p is the period and w its bins. x is the number of instances up (n
+ delta in the source), d those of them lent, s the starts requested. u is unserved local need, v is
unserved joint peak beyond that. C(n) is the joint capacity of n instances: theta n, or a curve from
``pool_tps``. With several sides, ``served`` replaces sum_g C(x - d).
"""

from functools import partial

import numpy as np

from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.formatting import (
    cap_words,
    in_region,
    on_gpu,
    percent,
    redundancy_words,
    replica_words,
    tokens_words,
)
from planner.optimizer.objective import BUDGET, CARBON, CHURN, POWER
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.program.variables import Draft
from planner.optimizer.roles import role_sides
from planner.optimizer.solvers.arrays import INF, Entry
from simulation.arrays import FloatArray, IntArray

CAP_NAMES = {BUDGET: "the budget", CARBON: "the carbon cap", CHURN: "the limit"}


def add_starts(draft: Draft) -> None:
    """Add  x[p] - x[p-1]  <=  s[p-lead]   for every p and cell, with x[-1] the present fleet."""
    rows = np.arange(len(draft.model))
    for period in range(len(draft.x)):
        entries: list[Entry] = [(rows, draft.x[period], 1.0)]
        if period:
            entries.append((rows, draft.x[period - 1], -1.0))
        if period >= draft.problem.lead:
            entries.append((rows, draft.starts[period - draft.problem.lead], -1.0))
        before = np.zeros(len(rows)) if period else draft.problem.first.current[draft.cell]
        draft.builder.add("starts", entries, -INF, before, len(rows))


def add_pools(draft: Draft) -> None:
    """Add  n <= x - d  for every period and pool: only instances up and not lent carry load.

    The joint capacity C(n) is modelled in ``program.pools``.
    """
    for period, by_lost in enumerate(draft.pools):
        lent = None if draft.lent is None else draft.lent[period]
        for pool_variables in by_lost.values():
            pool_variables.add_rows(draft.builder, draft.x[period], lent)


def add_sides(draft: Draft) -> None:
    """Add  sum_{g in side} C(x - d)  >=  share served   for every side, p, l, r.

    A side is a group of columns of one role, such as prefill or decode. Each needs the capacity C
    of its x - d serving instances for its ``share`` of the tokens/s served. A single side needs no
    rows: those on coverage are about its capacity.
    """
    if draft.served is None:
        return
    all_pairs = np.arange(draft.pairs)
    for side in role_sides(draft.problem.first):
        for period in range(len(draft.x)):
            entries = draft.carried_tps(period, draft.pair_of_cell, side)
            entries.append((all_pairs, draft.served[period], -side.share))
            draft.builder.add("side", entries, 0.0, INF, draft.pairs)


def add_local_coverage(draft: Draft) -> None:
    """Add  sum_g C(x - d) + sum_k u  >=  epsilon max_w rho[p,l,r,w]   for every p, l, r.

    Each region must serve the share epsilon of its peak, or count the rest u as unserved.
    """
    all_pairs = np.arange(draft.pairs)
    for period, window in enumerate(draft.problem.windows):
        need = local_need_tps(window).ravel()
        entries = draft.served_tps(period, all_pairs)
        if draft.short is not None:
            entries += [(all_pairs, tier[period], 1.0) for tier in draft.short]
        words = partial(_own_words, window, draft.problem.period_suffix(period))
        draft.builder.add("local", entries, need, INF, draft.pairs, words)


def add_global_coverage(draft: Draft) -> None:
    """Add  sum_r sum_g C(x - d) + sum_k (sum_r u + v)  >=  max_w sum_r rho   for every p, l.

    All regions together must serve the joint peak, or count the rest as unserved.
    """
    models, model_of = np.arange(len(draft.problem.first.models)), draft.model_of_pair
    for period, window in enumerate(draft.problem.windows):
        entries = draft.served_tps(period, model_of)
        if draft.short is not None and draft.beyond is not None:
            entries += [(model_of, tier[period], 1.0) for tier in draft.short]
            entries += [(models, tier[period], 1.0) for tier in draft.beyond]
        words = partial(_joint_words, window, draft.problem.period_suffix(period))
        draft.builder.add("global", entries, global_need_tps(window), INF, len(models), words)


def add_region_loss(draft: Draft) -> None:
    """Add  sum_{r != q} served[r] + sum_k (sum_r u + v)  >=  max_w sum_r rho   for every p, l, q.

    q is the region that may be lost. Its local need is lost with it. The local needs of the others
    keep their rows.
    """
    problem, pair = draft.problem, np.arange(draft.pairs)
    if not problem.first.lose_region:
        return
    models, regions = len(problem.first.models), len(problem.first.regions)
    model, region = np.divmod(pair, regions)
    all_models = np.arange(models)
    for period, window in enumerate(problem.windows):
        need = global_need_tps(window)
        for lost, name in enumerate(window.regions):
            remains = (region != lost).astype(float)
            entries = draft.served_tps(period, model, remains)
            if draft.short is not None and draft.beyond is not None:
                entries += [(model, tier[period], 1.0) for tier in draft.short]
                entries += [(all_models, tier[period], 1.0) for tier in draft.beyond]
            words = partial(_joint_words, window, f" but {name}{problem.period_suffix(period)}")
            draft.builder.add("regions", entries, need, INF, models, words)


def add_capacity(draft: Draft) -> None:
    """Add  sum_{l, g of t} gpus_per_instance (x + starting)  <=  capacity_gpus[r,t]  for p, r, t.

    Instances use no more GPUs than a region has. Starting instances occupy their GPUs. These rows
    are not in the source.
    """
    for period, window in enumerate(draft.problem.windows):
        row = draft.region * window.capacity_gpus.shape[1] + window.rows[draft.column]
        size = window.gpus_per_instance[draft.model, draft.column]
        entries: list[Entry] = [(row, draft.x[period], size)]
        entries += draft.starting_instances(period, row, size)
        gpus = window.capacity_gpus
        words = partial(_capacity_words, window, draft.problem.period_suffix(period))
        draft.builder.add("capacity", entries, -INF, gpus.ravel(), gpus.size, words)


def add_reservations(draft: Draft) -> None:
    """Add  used[p]  <=  reserved  and  used[p]  <=  sum gpus (x + starting)  for every p, r, t.

    ``reserved`` and ``used`` count GPUs. Only a reserved GPU that an instance occupies saves its
    price on demand.
    """
    if draft.reserved is None or draft.used is None:
        return
    window, rows = draft.problem.first, np.arange(len(draft.reserved))
    row = draft.region * window.capacity_gpus.shape[1] + window.rows[draft.column]
    size = window.gpus_per_instance[draft.model, draft.column]
    for period, used in enumerate(draft.used):
        entries: list[Entry] = [(rows, draft.reserved, 1.0), (rows, used, -1.0)]
        draft.builder.add("reserved", entries, 0.0, INF, len(rows))
        entries = [(row, draft.x[period], size), *draft.starting_instances(period, row, size)]
        draft.builder.add("reserved", [*entries, (rows, used, -1.0)], 0.0, INF, len(rows))


def add_power(draft: Draft) -> None:
    """Add  sum kw (x + starting)  <=  power_kw[r,t]  for every p and every rack and site limit."""
    for period, window in enumerate(draft.problem.windows):
        if window.power_kw is None or window.kw is None:
            continue
        limits = np.argwhere(np.isfinite(window.power_kw))
        entries: list[Entry] = []
        for row, (region, kind) in enumerate(limits):
            inside = (draft.region == region) & window.under_power_limit(kind)[draft.column]
            kw = np.where(inside, window.kw[draft.cell], 0.0)
            entries += [(row, draft.x[period], kw), *draft.starting_instances(period, row, kw)]
        most = window.power_kw[tuple(limits.T)]
        words = partial(_power_words, window, limits, draft.problem.period_suffix(period))
        draft.builder.add(POWER, entries, -INF, most, len(limits), words)


def add_lending(draft: Draft) -> None:
    """Add  d[p]  <=  x[p]   for every p and cell: only instances that are up can be lent."""
    if draft.lent is not None:
        rows = np.arange(draft.lent.size)
        entries: list[Entry] = [(rows, draft.x.ravel(), 1.0), (rows, draft.lent.ravel(), -1.0)]
        draft.builder.add("lending", entries, 0.0, INF, len(rows))


def add_minimums(draft: Draft) -> None:
    """Add  x[p] - d[p]  >=  minimum[p,l,r,g]   where the minimum is above 0.

    Before period ``lead``, no requested instance can be up yet. The minimum is then at most the
    present fleet.
    """
    for period, window in enumerate(draft.problem.windows):
        minimums = window.minimum[draft.cell]
        if period < draft.problem.lead:
            minimums = np.minimum(minimums, draft.problem.first.current[draft.cell])
        cells = np.flatnonzero(minimums > 0)
        rows = np.arange(len(cells))
        entries: list[Entry] = [(rows, draft.x[period, cells], 1.0)]
        if draft.lent is not None:
            entries.append((rows, draft.lent[period, cells], -1.0))
        words = partial(
            _bound_words, draft, "at least", minimums, cells, draft.problem.period_suffix(period)
        )
        draft.builder.add("minimum", entries, minimums[cells], INF, len(cells), words)


def add_maximums(draft: Draft) -> None:
    """Add  x[p]  <=  maximum[p,l,r,g]   where capacity alone would allow more."""
    for period, window in enumerate(draft.problem.windows):
        maximums, room = window.maximum[draft.cell], window.room[draft.region, draft.column]
        gpus_at_maximum = maximums * window.gpus_per_instance[draft.model, draft.column]
        cells = np.flatnonzero(gpus_at_maximum < room)
        entries: list[Entry] = [(np.arange(len(cells)), draft.x[period, cells], 1.0)]
        words = partial(
            _bound_words, draft, "at most", maximums, cells, draft.problem.period_suffix(period)
        )
        draft.builder.add("maximum", entries, -INF, maximums[cells], len(cells), words)


def add_tiers(draft: Draft) -> None:
    """Add  sum_r u[k,p,l,r] + v[k,p,l]  <=  demand of the tier   for every k, p, l.

    A tier cannot have more unserved demand than it has demand: the larger of its joint peak and
    the sum of its local needs.
    """
    if draft.short is None or draft.beyond is None:
        return
    models, model_of = np.arange(len(draft.problem.first.models)), draft.model_of_pair
    tier_demand = np.maximum(draft.problem.own_demand.sum(axis=3), draft.problem.joint_demand)
    for tier, period in np.ndindex(tier_demand.shape[:2]):
        entries: list[Entry] = [(model_of, draft.short[tier, period], 1.0)]
        entries.append((models, draft.beyond[tier, period], 1.0))
        draft.builder.add("tiers", entries, -INF, tier_demand[tier, period], len(models))


def add_rerouting(draft: Draft) -> None:
    """Add the rows of cross-region traffic f at the moment w* of each model's joint peak.

    f[i,j]  <=  reroute[i,j] rho[l,i,w*],  sum_j f[i,j] + u  >=  rho[l,i,w*], and  sum_i f[i,j]  <=
    capacity of region j. If a region may be lost, the same rows are added without each region. The
    lost region's demand may then use its open routes without a limit on their share.
    """
    if draft.problem.reroute is not None:
        _add_flows(draft, draft.problem.reroute)
        for lost, name in enumerate(draft.problem.first.regions):
            if draft.problem.first.lose_region:
                allowed_shares = draft.problem.reroute.copy()
                allowed_shares[lost] = allowed_shares[lost] > 0
                _add_flows(draft, allowed_shares, lost, f", {name} lost")


def _add_flows(
    draft: Draft, allowed_shares: FloatArray, lost: int | None = None, words_before: str = ""
) -> None:
    """Add the rows of ``add_rerouting`` for ``allowed_shares [r, r]``, without region ``lost``.

    A flow is the demand of a model and region that another region serves, at the time of the
    model's joint peak. Flows must cover the demand, and a region the flows into it. With ``lost``
    None, no region is lost.
    """
    problem = draft.problem
    models, regions = len(problem.first.models), len(problem.first.regions)
    pair = np.arange(draft.pairs)
    model, region = np.divmod(pair, regions)
    for period, window in enumerate(problem.windows):
        peak_bin = window.demand_tps.sum(axis=1).argmax(axis=1)  # [l]
        rho = window.demand_tps[np.arange(models), :, peak_bin].ravel()  # demand then, [l * r]
        # A region may serve all of its own demand. Shares are by pair and serving region.
        shares = allowed_shares[region] + np.eye(regions)[region]  # [l * r, r]
        if lost is not None:
            shares[:, lost] = 0.0
        max_flow = np.minimum(1.0, shares) * rho[:, None]
        flow = draft.builder.grid(shares.shape, upper=max_flow)
        entries: list[Entry] = [(pair[:, None], flow, 1.0)]
        if draft.short is not None and draft.beyond is not None:
            entries += [(pair, tier[period], 1.0) for tier in draft.short]
            entries += [(pair, tier[period][model], 1.0) for tier in draft.beyond]
        words = partial(_home_words, window, words_before + problem.period_suffix(period), rho)
        draft.builder.add("reroute", entries, rho, INF, draft.pairs, words)
        # What each region serves must be at least the flows into it.
        serving_pair = model[:, None] * regions + np.arange(regions)
        entries = [(serving_pair, flow, -1.0), *draft.served_tps(period, pair)]
        draft.builder.add("side", entries, 0.0, INF, draft.pairs)


def add_caps(draft: Draft) -> None:
    """Add  sum a x[p] + sum b s[p]  <=  limit  for money and carbon;  starts + stops  <=  churn.

    A limit of one period is per hour for money and carbon. A limit on all periods is on their sum.
    Changes have a constant part, ``offset``, since the present fleet is no variable.
    """
    problem = draft.problem
    for family, field, measure in (
        (BUDGET, "budget_usd", "usd"),
        (CARBON, "carbon_kg", "kg"),
        (CHURN, "churn", None),
    ):
        uses = [
            (draft.hourly_use(period, measure), 0.0) if measure else draft.starts_and_stops(period)
            for period in range(len(problem.windows))
        ]
        for period, (entries, offset) in enumerate(uses):
            limit = getattr(problem.windows[period], field)
            if np.isfinite(limit):
                words = partial(_cap_words, family, limit, problem.period_suffix(period))
                draft.builder.add(family, entries, -INF, limit - offset, 1, words)
        total = getattr(problem, field)
        if np.isfinite(total):
            hours = problem.hours if measure else 1.0  # starts and stops are not per hour
            all_entries: list[Entry] = [
                (row, column, np.asarray(coefficient, float) * hours)
                for entries, _ in uses
                for row, column, coefficient in entries
            ]
            rest = total - sum(offset for _, offset in uses)
            words = partial(_overall_words, family, total)
            draft.builder.add(family, all_entries, -INF, rest, 1, words)


FAMILIES = (
    add_pools,
    add_sides,
    add_local_coverage,
    add_global_coverage,
    add_region_loss,
    add_capacity,
    add_reservations,
    add_power,
    add_lending,
    add_minimums,
    add_maximums,
    add_starts,
    add_tiers,
    add_rerouting,
    add_caps,
)


# The functions below name the row ``row`` of a family in the explanation of a conflict. ``within``
# is the period, such as " in period 2".


def _capacity_words(window: PlanningProblem, within: str, row: int) -> str:
    region, kind = divmod(row, window.capacity_gpus.shape[1])
    gpus = int(window.capacity_gpus[region, kind])
    return f"{gpus:,} {window.row_names[kind]} in {window.regions[region]}{within}"


def _own_words(window: PlanningProblem, within: str, row: int) -> str:
    """Return the demand that a region must serve itself."""
    model, region = divmod(row, len(window.regions))
    need = tokens_words(local_need_tps(window)[model, region])
    where = in_region(window, model, region)
    share = percent(window.epsilon)
    return f"{need} of {where} ({share} of its peak){within}{redundancy_words(window)}"


def _joint_words(window: PlanningProblem, within: str, row: int) -> str:
    need = tokens_words(global_need_tps(window)[row])
    return f"{need} of {window.models[row]} in all regions{within}{redundancy_words(window)}"


def _home_words(window: PlanningProblem, within: str, rho: FloatArray, row: int) -> str:
    where = in_region(window, *divmod(row, len(window.regions)))
    return f"{tokens_words(rho[row])} from {where}, served there or in an allowed region{within}"


def _bound_words(
    draft: Draft, least_or_most: str, limit: IntArray, cells: IntArray, within: str, row: int
) -> str:
    """Return a minimum or maximum of instances; ``least_or_most`` is "at least" or "at most"."""
    cell = cells[row]
    where = on_gpu(
        draft.problem.first,
        int(draft.model[cell]), int(draft.region[cell]), int(draft.column[cell]),
    )  # fmt: skip
    return f"{least_or_most} {replica_words(int(limit[cell]))} of {where}{within}"


def _power_words(window: PlanningProblem, limits: IntArray, within: str, row: int) -> str:
    region, kind = limits[row].tolist()
    limit = 0.0 if window.power_kw is None else float(window.power_kw[region, kind])
    return f"{cap_words(POWER, limit)} of {window.power_limit_name(region, kind)}{within}"


def _cap_words(family: str, limit: float, within: str, row: int) -> str:
    return f"{CAP_NAMES[family]} of {cap_words(family, limit)}{within}"


def _overall_words(family: str, limit: float, row: int) -> str:
    limit_words = cap_words(family, limit).removesuffix("/h")
    return f"{limit_words} at most over all periods"
