"""Add the constraint families of the program, one function each, with words for conflicts.

A docstring says in words what its rows require, and then gives the formula. Indices: p period, k
tier, l model, r region, g GPU column, w bin of a period, t capacity row. A cell is a model, region
and GPU column that can run the model. Symbols are those of seed 004, section 5, where it has one:

- x: instances up (n + delta in the source); d: those of them that are lent; s: starts requested
- rho: demand in tokens/s; epsilon: share of its peak that a region must serve itself
- u: unserved local need; v: unserved joint peak beyond the local needs
- C(n): joint capacity of n instances: theta n, or a curve from ``pool_tps``

With several sides (prefill and decode, for example), ``served`` replaces sum_g C(x - d).
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
    """Require that instances up increase only by the starts requested ``lead`` periods before.

    x[p] - x[p-1] <= s[p-lead]  for every p and cell. Before the first period, x is the present
    fleet.
    """
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
    """Require that only instances that are up and not lent carry load:  n <= x - d  for every cell.

    The joint capacity C(n) of n instances is modelled in ``program.pools``.
    """
    for period, by_lost in enumerate(draft.pools):
        lent = None if draft.lent is None else draft.lent[period]
        for pool_variables in by_lost.values():
            pool_variables.add_rows(draft.builder, draft.x[period], lent)


def add_sides(draft: Draft) -> None:
    """Require that each side has capacity for its share of the tokens/s served.

    A side is a group of GPU columns of one role, such as prefill or decode.

    sum_{g in side} C(x - d) >= share * served  for every side, p, l, r. A single side needs no
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
    """Require that each region serves the share epsilon of its peak, or counts it as unserved.

    sum_g C(x - d) + sum_k u >= epsilon max_w rho[p,l,r,w]  for every p, l, r.
    """
    all_pairs = np.arange(draft.pairs)
    for period, window in enumerate(draft.problem.windows):
        need_tps = local_need_tps(window).ravel()
        entries = draft.served_tps(period, all_pairs)
        entries += [(all_pairs, tier[period], 1.0) for tier in draft.unserved_local]
        words = partial(_own_words, window, draft.problem.period_suffix(period))
        draft.builder.add("local", entries, need_tps, INF, draft.pairs, words)


def add_global_coverage(draft: Draft) -> None:
    """Require that all regions together serve the joint peak, or count the rest as unserved.

    sum_r sum_g C(x - d) + sum_k (sum_r u + v) >= max_w sum_r rho  for every p, l.
    """
    models, model_of = np.arange(len(draft.problem.first.models)), draft.model_of_pair
    for period, window in enumerate(draft.problem.windows):
        entries = draft.served_tps(period, model_of)
        entries += [(model_of, tier[period], 1.0) for tier in draft.unserved_local]
        entries += [(models, tier[period], 1.0) for tier in draft.unserved_joint]
        words = partial(_joint_words, window, draft.problem.period_suffix(period))
        draft.builder.add("global", entries, global_need_tps(window), INF, len(models), words)


def add_region_loss(draft: Draft) -> None:
    """Require that the other regions serve the joint peak if any one region q is lost.

    sum_{r != q} served[r] + sum_k (sum_r u + v) >= max_w sum_r rho  for every p, l, q. The local
    need of q is lost with it. The local needs of the others keep their rows.
    """
    problem = draft.problem
    if not problem.first.lose_region:
        return
    models = np.arange(len(problem.first.models))  # a row for each
    # The model and region of each pair, which is numbered model * regions + region.
    model, region = draft.model_of_pair, np.arange(draft.pairs) % len(problem.first.regions)
    for period, window in enumerate(problem.windows):
        need_tps = global_need_tps(window)
        for lost_region, name in enumerate(window.regions):
            is_left = (region != lost_region).astype(float)
            entries = draft.served_tps(period, model, is_left)
            entries += [(model, tier[period], 1.0) for tier in draft.unserved_local]
            entries += [(models, tier[period], 1.0) for tier in draft.unserved_joint]
            words = partial(_joint_words, window, f" but {name}{problem.period_suffix(period)}")
            draft.builder.add("regions", entries, need_tps, INF, len(models), words)


def add_capacity(draft: Draft) -> None:
    """Require that instances, up or starting, use no more GPUs than a region has.

    sum_{l, g of t} gpus_per_instance (x + starting) <= capacity_gpus[r,t]  for every p, r, t. These
    rows are not in the source.
    """
    for period, window in enumerate(draft.problem.windows):
        capacity_row = draft.region * window.capacity_gpus.shape[1] + window.rows[draft.column]
        gpus_each = window.gpus_per_instance[draft.model, draft.column]
        entries: list[Entry] = [(capacity_row, draft.x[period], gpus_each)]
        entries += draft.starting_instances(period, capacity_row, gpus_each)
        gpus = window.capacity_gpus
        words = partial(_capacity_words, window, draft.problem.period_suffix(period))
        draft.builder.add("capacity", entries, -INF, gpus.ravel(), gpus.size, words)


def add_reservations(draft: Draft) -> None:
    """Require that GPUs count as used reservations only if they are reserved and occupied.

    used[p] <= reserved  and  used[p] <= sum gpus (x + starting)  for every p, r, t. Only a reserved
    GPU that an instance occupies saves its price on demand.
    """
    if draft.reserved is None or draft.used is None:
        return
    window, rows = draft.problem.first, np.arange(len(draft.reserved))
    capacity_row = draft.region * window.capacity_gpus.shape[1] + window.rows[draft.column]
    gpus_each = window.gpus_per_instance[draft.model, draft.column]
    for period, used_variables in enumerate(draft.used):
        minus_used = (rows, used_variables, -1.0)
        reserved: list[Entry] = [(rows, draft.reserved, 1.0), minus_used]
        draft.builder.add("reserved", reserved, 0.0, INF, len(rows))
        starting = draft.starting_instances(period, capacity_row, gpus_each)
        occupied = [(capacity_row, draft.x[period], gpus_each), *starting, minus_used]
        draft.builder.add("reserved", occupied, 0.0, INF, len(rows))


def add_power(draft: Draft) -> None:
    """Require that instances, up or starting, keep the power limits of racks and sites.

    sum kw (x + starting) <= power_kw  for every p and every limit.
    """
    for period, window in enumerate(draft.problem.windows):
        if window.power_kw is None or window.kw is None:
            continue
        limits = np.argwhere(np.isfinite(window.power_kw))  # rows of (region, column of the limit)
        entries: list[Entry] = []
        for row, (region, limit_column) in enumerate(limits):
            counted = window.under_power_limit(limit_column)[draft.column]
            kw = np.where((draft.region == region) & counted, window.kw[draft.cell], 0.0)
            entries.append((row, draft.x[period], kw))
            entries += draft.starting_instances(period, row, kw)
        limit_kw = window.power_kw[tuple(limits.T)]
        words = partial(_power_words, window, limits, draft.problem.period_suffix(period))
        draft.builder.add(POWER, entries, -INF, limit_kw, len(limits), words)


def add_lending(draft: Draft) -> None:
    """Require that only instances that are up are lent:  d[p] <= x[p]  for every p and cell."""
    if draft.lent is not None:
        rows = np.arange(draft.lent.size)
        entries: list[Entry] = [(rows, draft.x.ravel(), 1.0), (rows, draft.lent.ravel(), -1.0)]
        draft.builder.add("lending", entries, 0.0, INF, len(rows))


def add_minimums(draft: Draft) -> None:
    """Require the minimums of instances that are up and not lent, where they are above 0.

    x[p] - d[p] >= minimum[p,l,r,g]. Before period ``lead``, no requested instance can be up yet.
    The minimum is then at most the present fleet.
    """
    for period, window in enumerate(draft.problem.windows):
        minimums = window.minimum[draft.cell]
        if period < draft.problem.lead:
            minimums = np.minimum(minimums, draft.problem.first.current[draft.cell])
        cells = np.flatnonzero(minimums > 0)
        rows = np.arange(len(cells))  # a constraint per cell
        entries = draft.serving_instances(period, rows, 1.0, cells)
        words = partial(
            _bound_words, draft, "at least", minimums, cells, draft.problem.period_suffix(period)
        )
        draft.builder.add("minimum", entries, minimums[cells], INF, len(cells), words)


def add_maximums(draft: Draft) -> None:
    """Require the maximums of instances where capacity would allow more:  x[p] <= maximum."""
    for period, window in enumerate(draft.problem.windows):
        maximums = window.maximum[draft.cell]
        gpus_at_maximum = maximums * window.gpus_per_instance[draft.model, draft.column]
        cells = np.flatnonzero(gpus_at_maximum < window.usable_gpus[draft.region, draft.column])
        entries: list[Entry] = [(np.arange(len(cells)), draft.x[period, cells], 1.0)]
        words = partial(
            _bound_words, draft, "at most", maximums, cells, draft.problem.period_suffix(period)
        )
        draft.builder.add("maximum", entries, -INF, maximums[cells], len(cells), words)


def add_tiers(draft: Draft) -> None:
    """Require that no tier has more unserved demand than demand.

    sum_r u[k,p,l,r] + v[k,p,l] <= demand of the tier  for every k, p, l. The demand is the larger
    of the tier's joint peak and the sum of its local needs.
    """
    models, model_of = np.arange(len(draft.problem.first.models)), draft.model_of_pair
    tier_demand = np.maximum(draft.problem.own_demand.sum(axis=3), draft.problem.joint_demand)
    for tier, period in np.ndindex(draft.unserved_joint.shape[:2]):
        entries: list[Entry] = [(model_of, draft.unserved_local[tier, period], 1.0)]
        entries.append((models, draft.unserved_joint[tier, period], 1.0))
        draft.builder.add("tiers", entries, -INF, tier_demand[tier, period], len(models))


def add_rerouting(draft: Draft) -> None:
    """Require that demand is served at home or over allowed routes at each model's joint peak.

    Let f[i,j] be the tokens/s of home region i that region j serves at the bin w* of the joint peak
    of model l, and u the tokens/s that may stay unserved. Then
    f[i,j] <= reroute[i,j] rho[l,i,w*],  sum_j f[i,j] + u >= rho[l,i,w*],  and
    sum_i f[i,j] <= capacity of region j. If a region may be lost, the same rows are added for the
    loss of each region. The lost region's demand may then use its routes without a limit on their
    share.
    """
    if draft.problem.reroute is not None:
        _add_flows(draft, draft.problem.reroute)
        for lost, name in enumerate(draft.problem.first.regions):
            if draft.problem.first.lose_region:
                allowed_shares = draft.problem.reroute.copy()
                allowed_shares[lost] = np.where(allowed_shares[lost] > 0, 1.0, 0.0)
                _add_flows(draft, allowed_shares, lost, f", {name} lost")


def _add_flows(
    draft: Draft, allowed_shares: FloatArray, lost_region: int | None = None, words_before: str = ""
) -> None:
    """Add variables and rows for the traffic between regions at each model's joint peak.

    A flow is the demand of a model and home region that a serving region takes, in tokens/s. It is
    at most the share ``allowed_shares [home region, serving region]`` of the demand. Flows out of a
    home region must cover its demand. The capacity of a region must cover the flows into it, and
    region ``lost_region`` takes none (None: no region is lost). ``words_before`` tells of the loss
    in explanations of a conflict.
    """
    problem = draft.problem
    regions = len(problem.first.regions)
    # Pair model * regions + home region has the demand of a model in a region.
    pair, model = np.arange(draft.pairs), draft.model_of_pair
    home = pair % regions
    # The home region may serve all demand. Shares and flows are [pair, serving region].
    max_shares = np.minimum(1.0, allowed_shares[home] + np.eye(regions)[home])
    if lost_region is not None:
        max_shares[:, lost_region] = 0.0
    for period, window in enumerate(problem.windows):
        demand_tps = _demand_at_peak(window)
        flows = draft.builder.grid(max_shares.shape, upper=max_shares * demand_tps[:, None])
        # Flows and unserved demand of a pair must cover its demand.
        entries: list[Entry] = [(pair[:, None], flows, 1.0)]
        entries += [(pair, tier[period], 1.0) for tier in draft.unserved_local]
        entries += [(pair, tier[period][model], 1.0) for tier in draft.unserved_joint]
        words = partial(
            _home_words, window, words_before + problem.period_suffix(period), demand_tps
        )
        draft.builder.add("reroute", entries, demand_tps, INF, draft.pairs, words)
        # What each region serves must be at least the flows into it.
        serving_pair = model[:, None] * regions + np.arange(regions)
        entries = [(serving_pair, flows, -1.0), *draft.served_tps(period, pair)]
        draft.builder.add("side", entries, 0.0, INF, draft.pairs)


def _demand_at_peak(window: PlanningProblem) -> FloatArray:
    """Return the tokens/s of each region in the bin of each model's joint peak, ``[l * r]``."""
    peak_bin = window.demand_tps.sum(axis=1).argmax(axis=1)  # [l]
    return window.demand_tps[np.arange(len(peak_bin)), :, peak_bin].ravel()


def add_caps(draft: Draft) -> None:
    """Require the limits on money, carbon and changes (starts and stops) of the whole plan.

    sum a x[p] + sum b s[p] <= limit  for money and carbon;  starts + stops <= churn. A limit on one
    period is per hour for money and carbon. A limit on all periods is on their sum. Changes have a
    constant part, ``offset``, since the present fleet is no variable.
    """
    periods, hours = range(len(draft.problem.windows)), draft.problem.hours
    dollars = [(draft.hourly_use(period, "usd"), 0.0) for period in periods]
    _add_cap(draft, BUDGET, "budget_usd", dollars, hours)
    carbon = [(draft.hourly_use(period, "kg"), 0.0) for period in periods]
    _add_cap(draft, CARBON, "carbon_kg", carbon, hours)
    changes = [draft.starts_and_stops(period) for period in periods]
    _add_cap(draft, CHURN, "churn", changes, 1.0)  # starts and stops are not per hour


def _add_cap(
    draft: Draft,
    family: str,
    field: str,
    uses_by_period: list[tuple[list[Entry], float]],
    hours: float,
) -> None:
    """Add the limits ``field`` on the use of each period and on the sum of all periods.

    A use is (entries, offset): the sum of the entries plus the constant ``offset``. Entries are per
    hour, or with ``hours`` of 1 per period. ``family`` is the name of the limit.
    """
    problem = draft.problem
    for period, (entries, offset) in enumerate(uses_by_period):
        limit = getattr(problem.windows[period], field)
        if np.isfinite(limit):
            words = partial(_cap_words, family, limit, problem.period_suffix(period))
            draft.builder.add(family, entries, -INF, limit - offset, 1, words)
    total = getattr(problem, field)
    if np.isfinite(total):
        all_entries: list[Entry] = [
            (row, column, np.asarray(coefficient, float) * hours)
            for entries, _ in uses_by_period
            for row, column, coefficient in entries
        ]
        limit_left = total - sum(offset for _, offset in uses_by_period)
        draft.builder.add(
            family, all_entries, -INF, limit_left, 1, partial(_overall_words, family, total)
        )


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


# The functions below describe row ``row`` of a family (from 0) for the explanation of a conflict.
# ``within`` is the period, such as " in period 2".


def _capacity_words(window: PlanningProblem, within: str, row: int) -> str:
    """Return the GPU capacity of a row of ``add_capacity``, such as "8 H100-SXM in us-east"."""
    region, capacity_row = divmod(row, window.capacity_gpus.shape[1])
    gpus = int(window.capacity_gpus[region, capacity_row])
    return f"{gpus:,} {window.row_names[capacity_row]} in {window.regions[region]}{within}"


def _own_words(window: PlanningProblem, within: str, row: int) -> str:
    """Return the demand that a region must serve itself, of a row of ``add_local_coverage``."""
    model, region = divmod(row, len(window.regions))
    need = tokens_words(local_need_tps(window)[model, region])
    where = in_region(window, model, region)
    share = percent(window.epsilon)
    return f"{need} of {where} ({share} of its peak){within}{redundancy_words(window)}"


def _joint_words(window: PlanningProblem, within: str, row: int) -> str:
    """Return the joint demand of a model, of a row of ``add_global_coverage``."""
    need = tokens_words(global_need_tps(window)[row])
    return f"{need} of {window.models[row]} in all regions{within}{redundancy_words(window)}"


def _home_words(window: PlanningProblem, within: str, rho: FloatArray, row: int) -> str:
    """Return the demand ``rho[row]`` of a model and home region that flows must cover."""
    where = in_region(window, *divmod(row, len(window.regions)))
    return f"{tokens_words(rho[row])} from {where}, served there or in an allowed region{within}"


def _bound_words(
    draft: Draft, least_or_most: str, limit: IntArray, cells: IntArray, within: str, row: int
) -> str:
    """Return a minimum or maximum of instances in words.

    ``limit [n]`` is the bound of every cell, and ``cells [row]`` the cell of each row.
    ``least_or_most`` is "at least" or "at most".
    """
    cell = cells[row]
    where = on_gpu(
        draft.problem.first,
        int(draft.model[cell]), int(draft.region[cell]), int(draft.column[cell]),
    )  # fmt: skip
    return f"{least_or_most} {replica_words(int(limit[cell]))} of {where}{within}"


def _power_words(window: PlanningProblem, limits: IntArray, within: str, row: int) -> str:
    """Return the power limit at the index ``limits[row]`` of ``power_kw``."""
    region, limit_column = limits[row].tolist()
    limit = 0.0 if window.power_kw is None else float(window.power_kw[region, limit_column])
    return f"{cap_words(POWER, limit)} of {window.power_limit_name(region, limit_column)}{within}"


def _cap_words(family: str, limit: float, within: str, row: int) -> str:
    """Return a limit on one period, such as "the budget of $12.50/h in period 2"."""
    return f"{CAP_NAMES[family]} of {cap_words(family, limit)}{within}"


def _overall_words(family: str, limit: float, row: int) -> str:
    """Return a limit on all periods together, such as "$300.00 at most over all periods"."""
    limit_words = cap_words(family, limit).removesuffix("/h")
    return f"{limit_words} at most over all periods"
