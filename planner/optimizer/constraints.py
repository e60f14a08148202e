"""The constraint families of the program, one function each, named ``family_indices``.

Symbols of seed 004, section 5: theta capacity of an instance in input tokens/s, rho demand,
epsilon the local share; x is the target n + delta, so that delta >= -n becomes x >= 0.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from planner.optimizer import objective
from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.program import AT_LEAST, AT_MOST, Program, Terms
from planner.optimizer.sides import sides as all_sides


def sides(program: Program) -> None:
    """sum_{g in side} theta[l,g] x[l,r,g]  >=  share served[l,r]   for every side, l, r.

    Only where there is more than one side (prefill and decode, owned and spot); otherwise the
    instances themselves are in the rows of coverage.
    """
    theta = program.problem.theta_tps
    for at, side in enumerate(all_sides(program.problem)):
        rows: defaultdict[tuple[int, int], Terms] = defaultdict(list)
        for (model, region, gpu), x in program.x.items():
            if side.columns[gpu]:
                rows[model, region].append((x, float(theta[model, gpu])))
        for (model, region), served in program.served.items():
            row = [*rows[model, region], (served, -side.share)]
            program.add(f"side_{model}_{region}_{at}", row, AT_LEAST, 0.0)


def local_coverage(program: Program) -> None:
    """sum_g theta[l,g] x[l,r,g]  >=  epsilon max_w rho[l,r,w]   for every l, r.

    With more than one side ``served[l,r]`` stands for the sum, here and below.
    """
    need, terms = local_need_tps(program.problem), program.serving()
    for model, region in np.argwhere(need > 0).tolist():
        program.add(f"local_{model}_{region}", terms[model, region], AT_LEAST, need[model, region])


def global_coverage(program: Program) -> None:
    """sum_r sum_g theta[l,g] x[l,r,g]  >=  max_w sum_r rho[l,r,w]   for every l."""
    need, terms = global_need_tps(program.problem), program.serving()
    for model in np.flatnonzero(need).tolist():
        regions = range(len(program.problem.regions))
        row = [term for region in regions for term in terms[model, region]]
        program.add(f"global_{model}", row, AT_LEAST, need[model])


def capacity(program: Program) -> None:
    """sum_l sum_{g of t} gpus_per_instance[l,g] x[l,r,g]  <=  capacity_gpus[r,t]   for every r, t.

    Ours, not the source's.
    """
    terms: defaultdict[tuple[int, int], Terms] = defaultdict(list)
    rows = program.problem.rows
    for (model, region, gpu), x in program.x.items():
        size = float(program.problem.gpus_per_instance[model, gpu])
        terms[region, int(rows[gpu])].append((x, size))
    for (region, held), row in terms.items():
        limit = program.problem.capacity_gpus[region, held]
        program.add(f"capacity_{region}_{held}", row, AT_MOST, limit)


def minimum(program: Program) -> None:
    """x[l,r,g]  >=  minimum[l,r,g]   wherever the minimum is above 0 (E2)."""
    for cell, x in program.x.items():
        least = program.problem.minimum[cell]
        if least > 0:
            program.add("minimum_{}_{}_{}".format(*cell), [(x, 1.0)], AT_LEAST, least)


def maximum(program: Program) -> None:
    """x[l,r,g]  <=  maximum[l,r,g]   wherever capacity alone would allow more (E2)."""
    problem, room = program.problem, program.problem.room
    for cell, x in program.x.items():
        model, region, gpu = cell
        most = problem.maximum[cell]
        size = problem.gpus_per_instance[model, gpu]
        if most * size < room[region, gpu]:
            program.add("maximum_{}_{}_{}".format(*cell), [(x, 1.0)], AT_MOST, most)


def starts(program: Program) -> None:
    """starts[l,r,g]  >=  x[l,r,g] - current[l,r,g]   for every l, r, g; with starts >= 0."""
    for cell, started in program.starts.items():
        row = [(started, 1.0), (program.x[cell], -1.0)]
        name = "starts_{}_{}_{}".format(*cell)
        program.add(name, row, AT_LEAST, -float(program.problem.current[cell]))


def caps(program: Program) -> None:
    """sum a[l,r,g] x[l,r,g] + sum b[l,r,g] starts[l,r,g]  <=  limit   for budget, carbon, churn."""
    for cap in objective.caps(program.problem):
        row = [(x, float(cap.per_instance[cell])) for cell, x in program.x.items()]
        row += [(starts, float(cap.per_start[cell])) for cell, starts in program.starts.items()]
        program.add(cap.family, row, AT_MOST, cap.limit)
