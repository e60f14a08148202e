"""Add cuts that only whole instances satisfy: facets of the integer hull of a coverage constraint.

A coverage constraint asks that the instances n[g] of the GPU columns g have enough capacity: sum_g
C_g(n[g]) >= need. For few columns, the hull of all whole n that satisfy it can be listed. Atamturk
(On the facets of the mixed-integer knapsack polyhedron, 2003) treats such sets for linear C. Here
the hull is computed point by point.

HiGHS finds such cuts one by one and late. With all of them present, its first bound is close to the
optimum of every period. A joint need has such a hull over the instances of all regions, because
separate pools carry no more than one pool of the same instances.
"""

import itertools
from functools import lru_cache, partial

import numpy as np
import scipy

from planner.optimizer.figures import TOLERANCE, global_need_tps, local_need_tps
from planner.optimizer.pools import capacity_curve, fewest_instances, is_nonlinear
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.program.variables import Draft
from planner.optimizer.roles import role_sides
from planner.optimizer.solvers.arrays import INF
from simulation.arrays import FloatArray, IntArray

COLUMNS = 4  # most GPU columns; with more, the hull has too many points
POINTS = 4_000  # most combinations of counts to list for one hull
FACETS = 40  # most facets of one hull; with more, it is left to the solver
EDGE = 1e-9  # share of the need within which two values count as equal
LOOSE = 1e-7  # share by which a facet is moved outwards


def add_cover_cuts(draft: Draft) -> None:
    """Add cuts to the program that exclude only fractional replicas.

    They are the facets of the whole replicas with capacity for a demand: for each local need of a
    region and for each joint demand of all regions. Nothing is added if demand may stay unserved.
    """
    if draft.problem.priority is not None:
        return
    first = draft.problem.first
    for side in role_sides(first):
        for model in range(len(first.models)):
            columns = np.flatnonzero((first.theta_tps[model] > 0) & side.columns)
            lost = side.lost[columns]
            for period, window in enumerate(draft.problem.windows):
                local, joint = local_need_tps(window)[model], global_need_tps(window)[model]
                add = partial(_add_facets, draft, period, model, columns=columns, lost=lost)
                for region, need in enumerate(local):
                    add(region, need_tps=need * side.share)
                if len(local) > 1:
                    add(region=None, need_tps=joint * side.share)


def _add_facets(
    draft: Draft,
    period: int,
    model: int,
    region: int | None,
    columns: IntArray,
    lost: IntArray,
    need_tps: float,
) -> None:
    """Add rows that whole instances must satisfy to serve ``need_tps`` of a model in a period.

    They are the inequalities of ``cover_facets`` over GPU ``columns [c]``. ``lost [c]`` instances
    of each are assumed gone. ``region`` None: all regions serve the demand together.
    """
    facet_rows = cover_facets(draft.problem.first, model, columns, lost, need_tps)
    if not len(facet_rows):
        return
    is_covered = (draft.model == model) & np.isin(draft.column, columns)
    if region is not None:
        is_covered &= draft.region == region
    cells = np.flatnonzero(is_covered)
    # The coefficients of a facet are by GPU column. Each cell gets that of its column.
    row_index = np.arange(len(facet_rows))[:, None]
    coefficients = facet_rows[:, np.searchsorted(columns, draft.column[cells])]
    entries = draft.serving_instances(period, row_index, coefficients, cells)
    draft.builder.add("whole", entries, facet_rows[:, -1], INF, len(facet_rows))


def cover_facets(
    problem: PlanningProblem, model: int, columns: IntArray, lost: IntArray, need_tps: float
) -> FloatArray:
    """Return inequalities a x >= b that all instance counts x that serve ``need_tps`` satisfy.

    ``need_tps`` is in tokens/s. x counts the instances of GPU ``columns [c]``, of which ``lost
    [c]`` are assumed gone. The result is ``[facet, c + 1]``: the coefficients a, then b. It has no
    rows if there are too many columns or points to list.
    """
    no_rows = np.empty((0, len(columns) + 1))
    if need_tps <= 0 or not 0 < len(columns) <= COLUMNS:
        return no_rows
    enough_tps = float(need_tps * (1 - TOLERANCE))
    curves: tuple[tuple[float, ...], ...] = ()
    if lost.any() or is_nonlinear(problem)[model, columns].any():
        curves = _capacity_curves(problem, model, columns, lost, enough_tps)
        if not curves:
            return no_rows
    tps_each = problem.theta_tps[model, columns]
    inequalities = facets(tuple(tps_each.tolist()), enough_tps, curves).copy()
    # CBC reads rounded decimals. A plan exactly on a facet could otherwise fall below it.
    inequalities[:, -1] *= 1 - LOOSE
    return inequalities


def _capacity_curves(
    problem: PlanningProblem, model: int, columns: IntArray, lost: IntArray, need_tps: float
) -> tuple[tuple[float, ...], ...]:
    """Return the tokens/s of 0, 1, ... instances of each column; () with too many points."""
    columns_and_lost = list(zip(columns.tolist(), lost.tolist(), strict=True))
    counts = [
        fewest_instances(problem, model, column, need_tps, lost_count)
        for column, lost_count in columns_and_lost
    ]
    # The longest axis is computed from the others, so it adds no points.
    if np.prod(np.array(sorted(counts)[:-1], float) + 1) > POINTS:
        return ()
    return tuple(
        tuple(capacity_curve(problem, model, column, count, lost_count).tolist())
        for (column, lost_count), count in zip(columns_and_lost, counts, strict=True)
    )


# Periods and regions can have equal needs, so compute each hull once.
@lru_cache(maxsize=20_000)
def facets(
    theta: tuple[float, ...], need: float, curves: tuple[tuple[float, ...], ...] = ()
) -> FloatArray:
    """Return inequalities a n >= b that all whole counts n >= 0 with capacity for ``need`` satisfy.

    n counts the instances of each GPU column. An instance of column g carries ``theta[g]``. If
    capacity is not linear, ``curves[g]`` lists it for 0, 1, ... instances, up to the first count
    that suffices alone. All are in tokens/s. The result is ``[facet, column + 1]``: a >= 0, then b,
    scaled to b = 1. Inequalities with b = 0 are omitted. Too large a problem has no rows.
    """
    tables = [np.array(curve) for curve in curves]
    if not tables:
        counts = np.ceil(need / np.array(theta) - EDGE).astype(int)
        tables = [tps * np.arange(count + 1) for tps, count in zip(theta, counts, strict=True)]
    max_counts = np.array([len(table) - 1 for table in tables])
    if len(tables) == 1:  # count / max_count >= 1
        max_count = max_counts[0]
        return np.array([[1.0 / max_count, 1.0]]) if max_count > 0 else np.empty((0, 2))
    # The longest axis is computed from the others, not listed.
    longest_first = np.argsort(max_counts)[::-1]
    sorted_tables = [tables[column] for column in longest_first]
    rows = _facets_of_curves(sorted_tables, max_counts[longest_first], need)
    position = np.argsort(longest_first)  # of each column in the sorted ones; b stays last
    return rows[:, [*position, len(position)]]


def _facets_of_curves(curves: list[FloatArray], max_counts: IntArray, need: float) -> FloatArray:
    """Return the inequalities of ``facets``, without rows if there are too many points or facets.

    The first of ``curves`` is the longest. ``max_counts`` are the counts at the ends of the curves.
    """
    no_rows = np.empty((0, len(curves) + 1))
    if np.prod(max_counts[1:] + 1) > POINTS:
        return no_rows
    points = _minimal_covers(curves, need)  # [point, column]
    try:
        slopes = _lower_hull_slopes(points, max_counts)  # [facet, column]: a, for b = 1
    except scipy.spatial.QhullError:
        return no_rows
    if len(slopes) > FACETS:
        return no_rows
    # Rounding must not cut off a point, so b is at most the least a n over all points.
    lowest = (points @ slopes.T).min(axis=0)
    is_facet = lowest > EDGE
    return np.column_stack([slopes[is_facet], np.minimum(1.0, lowest[is_facet])])


def _minimal_covers(curves: list[FloatArray], need: float) -> FloatArray:
    """Return the counts ``[point, column]`` that carry ``need``, but not with one instance less.

    ``curves[g]`` is the tokens/s of 0, 1, ... instances of GPU column g, up to the first count that
    carries ``need`` alone.
    """
    combinations = itertools.product(*(range(len(curve)) for curve in curves[1:]))
    other_counts = np.array(list(combinations))  # of all columns but the first
    by_column = zip(curves[1:], other_counts.T, strict=True)
    others_tps = sum(curve[counts] for curve, counts in by_column)
    # The fewest instances of the first column that carry the rest.
    rest_tps = need - others_tps - EDGE * need
    first_counts = np.searchsorted(curves[0], rest_tps).clip(0, len(curves[0]) - 1)
    points = np.column_stack([first_counts, other_counts])
    spare_tps = others_tps + curves[0][first_counts] - need
    # The tokens/s that a point loses with one instance of a column, [point, column].
    added_tps = [np.diff(curve, prepend=curve[:1]) for curve in curves]
    added_by_last = [tps[counts] for tps, counts in zip(added_tps, points.T, strict=True)]
    lost_tps = np.column_stack(added_by_last)
    is_minimal = (points == 0) | (spare_tps[:, None] < lost_tps - EDGE * need)
    minimal: FloatArray = points[is_minimal.all(axis=1)].astype(float)
    return minimal


def _lower_hull_slopes(points: FloatArray, max_counts: IntArray) -> FloatArray:
    """Return the coefficients a of the facets a n >= 1, ``[facet, column]``, all >= 0.

    The facets bound the hull of all counts n that are at least one of ``points [n, column]``.
    Raises QhullError if the hull cannot be computed.
    """
    # Points that are dominated by others give the hull a volume.
    dominated = np.diag(4.0 * (max_counts + 1))
    far = np.full((1, len(max_counts)), 9.0 * max(max_counts))
    hull = scipy.spatial.ConvexHull(np.concatenate([points, dominated, far]))
    planes = np.unique(np.round(hull.equations, 9), axis=0)  # normal n + offset <= 0 inside
    slopes, offsets = -planes[:, :-1], planes[:, -1]
    bounds_below = (slopes >= -EDGE).all(axis=1) & (offsets > EDGE)
    scaled: FloatArray = np.maximum(0.0, slopes[bounds_below]) / offsets[bounds_below][:, None]
    return scaled
