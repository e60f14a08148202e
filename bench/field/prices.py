"""Work that follows prices, against a linear bound of our own and a replay by requests.

- ``shift_over_bound``: cost of the plan, its starts, reserved, on-demand and spot GPUs and
  electricity included, over a linear program that is written here and solved by SciPy.
- ``shift_cases``: by seed, this ratio, the share that moving and reserving saves, and the share of
  the work that moved.
- ``late_deferrable``: deferrable requests past their deadline, in replays of two plans.
- ``shift_ledger_error``: requests in the ledger of these replays that do not sum.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from planner.domain.kinds import simulate
from planner.domain.outcome import REQUESTS, Inputs
from planner.domain.progress import silent
from planner.optimizer.horizon import HorizonProblem, solve_horizon
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.shifting import Work, cheapest_shift
from simulation.arrays import BoolArray, FloatArray
from tests.planner.domain.builders import demand_file, scenario, source

SEEDS, GAP, SECONDS = 5, 5e-3, 10.0
PERIODS, REGIONS = 24, 2
HOUR_S = 3600.0
THETA, SPOT_SHARE = np.array([5000.0, 9000.0]), 0.3  # tokens/s of an A100 and an H100 replica
GPU_USD = np.array([[3.7, 6.9]]) * np.array([[1.0], [1.1]])  # [r, t] on demand
KW = np.array([0.6, 1.0])


def figures() -> dict[str, Any]:
    """Return the figures of this capability."""
    cases = [_case(seed) for seed in range(SEEDS)]
    replays = list(_replays())
    return {
        "shift_over_bound": max(case["over_bound"] for case in cases),
        "shift_cases": cases,
        "late_deferrable": sum(late for late, _, _ in replays),
        "deferrable_replayed": sum(count for _, count, _ in replays),
        "shift_ledger_error": sum(error for _, _, error in replays),
    }


def _case(seed: int) -> dict[str, float]:
    """Return the figures of a day with random demand, prices and deadlines."""
    problem, work, reach = _day(seed)
    shift = cheapest_shift(problem, work, reach, gap=GAP, time_limit_s=SECONDS)
    assert shift is not None
    begun = replace(problem, start=shift.target)
    plan = solve_horizon(_with_work(begun, shift.tokens), gap=GAP, time_limit_s=SECONDS)
    unmoved = replace(problem, reserved_usd=None, on_demand_usd=None)
    still = solve_horizon(_with_work(unmoved, shift.arrived), gap=GAP, time_limit_s=SECONDS)
    bound = _own_bound(problem, work, reach)
    moved = np.maximum(shift.tokens - shift.arrived, 0).sum() / shift.arrived.sum()
    return {
        "over_bound": plan.objective / bound,
        "saving": 1 - plan.objective / still.objective,
        "moved_share": float(moved),
        "reserved_gpus": float(plan.reserved.sum()),
    }


def _day(seed: int) -> tuple[HorizonProblem, Work, BoolArray]:
    """Return two regions with chat by day and batch work, and prices by hour of each region."""
    rng = np.random.default_rng(seed)
    hour = np.arange(PERIODS)
    shape = (1, REGIONS, 4)  # A100 and H100 on demand, then both on spot
    day = 1 + np.cos(2 * np.pi * (hour[:, None] - 15 + 3 * np.arange(REGIONS)) / 24)
    chat = rng.uniform(60_000, 200_000, REGIONS) * day * rng.uniform(0.9, 1.1, day.shape)
    usd_kwh = rng.uniform(0.02, 0.4, (PERIODS, REGIONS))
    gpu_usd = np.concatenate([GPU_USD, GPU_USD * rng.uniform(0.35, 0.8, GPU_USD.shape)], axis=1)
    kw = np.broadcast_to(np.tile(KW, 2), shape)
    windows = tuple(
        PlanningProblem(
            models=("m",), regions=("x", "y"), gpus=("a", "h", "a, spot", "h, spot"),
            current=np.zeros(shape, np.int64), theta_tps=np.tile(THETA, 2)[None],
            usd_per_hour=gpu_usd[None] + kw * usd_kwh[p][None, :, None],
            start_usd=gpu_usd[None] * 0.1, gpus_per_instance=np.ones((1, 4), np.int64),
            demand_tps=chat[p].reshape(1, REGIONS, 1), minimum=np.zeros(shape, np.int64),
            capacity_gpus=np.tile([300, 200, 60, 40], (REGIONS, 1)), maximum=np.full(shape, 400),
            epsilon=1.0, kw=kw, spot=np.array([False, False, True, True]), spot_share=SPOT_SHARE,
            types=np.arange(4),
        )
        for p in hour
    )  # fmt: skip
    reserved = np.full((REGIONS, 4), np.inf)
    reserved[:, :2] = GPU_USD * rng.uniform(0.55, 0.75, GPU_USD.shape)
    problem = HorizonProblem(windows, HOUR_S, reserved_usd=reserved, on_demand_usd=gpu_usd)
    home, arrival = (part.ravel() for part in np.meshgrid(np.arange(REGIONS), hour))
    last = np.minimum(PERIODS - 1, arrival + rng.integers(1, 12, len(arrival)))
    tokens = rng.uniform(40_000, 160_000, len(arrival)) * HOUR_S
    reach = np.array([[1, 1], [0, 1]], bool)
    return problem, Work(tokens, np.zeros_like(home), home, arrival, last), reach


def _with_work(problem: HorizonProblem, tokens: FloatArray) -> HorizonProblem:
    """Return the problem with ``tokens [p, l, r]`` of work in each period."""
    windows = tuple(
        replace(window, demand_tps=window.demand_tps + done[..., None] / HOUR_S)
        for window, done in zip(problem.windows, tokens, strict=True)
    )
    return replace(problem, windows=windows)


def _own_bound(problem: HorizonProblem, work: Work, reach: BoolArray) -> float:
    """Return the least cost of fractional replicas, starts, reservations and work.

    Written apart from the planner's program. Variables, in order: replicas x[p, r, g], starts
    s[p, r, g], reserved c[r, t], reserved in use u[p, r, t] and work y[f].
    """
    windows, (_, regions, columns) = problem.windows, problem.first.current.shape
    places, periods = regions * columns, len(windows)
    x = np.arange(periods * places).reshape(periods, regions, columns)
    s, c = x + x.size, np.arange(places).reshape(regions, columns) + 2 * x.size
    u = x + 2 * x.size + c.size
    flows = [
        (i, p, r)
        for i in range(len(work.tokens))
        for p in range(int(work.arrival[i]), int(work.last[i]) + 1)
        for r in np.flatnonzero(reach[work.home[i]])
    ]
    first_flow = 3 * x.size + c.size
    reserved, on_demand = problem.reserved_usd, problem.on_demand_usd
    assert reserved is not None
    assert on_demand is not None
    offered = np.isfinite(reserved)
    cost = np.zeros(first_flow + len(flows))
    cost[x] = np.stack([window.usd_per_hour[0] for window in windows])
    cost[s] = np.stack([window.start_usd[0] for window in windows])
    cost[c] = np.where(offered, reserved, 0.0) * periods
    cost[u] = -on_demand
    rows: list[tuple[list[int], list[float]]] = []
    limits: list[float] = []

    def add_limit(entries: list[tuple[int, float]], limit: float) -> None:
        rows.append(([k for k, _ in entries], [by for _, by in entries]))
        limits.append(limit)

    done_at: dict[tuple[int, int], list[int]] = {}
    for k, (_, p, r) in enumerate(flows):
        done_at.setdefault((p, int(r)), []).append(first_flow + k)
    theta, spot = problem.first.theta_tps[0], problem.first.spot
    assert spot is not None
    for p, window in enumerate(windows):
        for r in range(regions):
            need = float(window.demand_tps[0, r, 0])
            for share, kept in ((1.0, np.arange(columns)), (1 - SPOT_SHARE, np.flatnonzero(~spot))):
                # share (need + work)  <=  what these columns carry
                add_limit(
                    [(int(x[p, r, g]), -float(theta[g])) for g in kept]
                    + [(k, share) for k in done_at.get((p, r), [])],
                    -share * need,
                )
            for g in range(columns):
                before = [(int(x[p - 1, r, g]), -1.0)] if p else []
                add_limit([(int(x[p, r, g]), 1.0), (int(s[p, r, g]), -1.0), *before], 0.0)
                add_limit([(int(u[p, r, g]), 1.0), (int(x[p, r, g]), -1.0)], 0.0)
                add_limit([(int(u[p, r, g]), 1.0), (int(c[r, g]), -1.0)], 0.0)
    upper = np.full(len(cost), np.inf)
    upper[x] = problem.first.capacity_gpus
    upper[c] = np.where(offered, problem.first.capacity_gpus, 0)
    upper[u] = upper[c]
    parts = [i for i, _, _ in flows]
    all_done = coo_array(
        (np.ones(len(flows)), (parts, first_flow + np.arange(len(flows)))),
        shape=(len(work.tokens), len(cost)),
    )
    begins = np.cumsum([0, *(len(columns_of) for columns_of, _ in rows)])
    values = np.concatenate([by for _, by in rows])
    index = np.concatenate([columns_of for columns_of, _ in rows])
    solved = linprog(
        cost, A_ub=csr_array((values, index, begins), shape=(len(rows), len(cost))), b_ub=limits,
        A_eq=all_done.tocsr(), b_eq=work.tokens / HOUR_S,
        bounds=np.stack([np.zeros(len(cost)), upper], axis=1), method="highs",
    )  # fmt: skip
    return float(solved.fun)


def _replays() -> Iterator[tuple[int, int, int]]:
    """Yield late and all deferrable requests, and the error of the ledger, of two replays.

    One is of a plan on the true demand, the other on a forecast, with spot GPUs that are lost.
    """
    minutes = np.arange(0, 2 * 24 * 60)
    counts = 60 + 40 * np.sin(2 * np.pi * minutes / (24 * 60))
    lengths = {
        "input_tokens": {"t": (counts * 6000).tolist()},
        "output_tokens": {"t": (counts * 100).tolist()},
    }
    dear = [0.4] * 8 + [0.02] * 8 + [0.4] * 8
    regions = [
        {"name": "east", "capacity": {"G": 64}, "usd_per_gpu_hour": {"G": 2}, "pue": 1.2,
         "carbon_g_per_kwh": 400, "electricity_usd_per_kwh": dear,
         "committed": {"G": {"one_year": 1.4}}, "latency_ms": {"west": 30},
         "spot": {"G": {"capacity": 8, "usd_per_gpu_hour": 1, "reclaims_per_instance_hour": 0.1}}},
        {"name": "west", "capacity": {"G": 64}, "usd_per_gpu_hour": {"G": 2}, "pue": 1.2,
         "carbon_g_per_kwh": 200, "electricity_usd_per_kwh": dear[8:] + dear[:8],
         "committed": {"G": {"one_year": 1.4}}},
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        stored = {"t": demand_file(Path(folder), {"t": counts.tolist()}, tokens=lengths)}
        for policy in ("lt-i-perfect", "lt-i"):
            run = simulate.run(
                Inputs(scenario(
                    regions=regions,
                    tiers=[
                        {"name": "chat", "ttft_ms": 2000, "tbt_ms": 100},
                        {"name": "batch", "e2e_ms": 28_800_000, "deferrable": True,
                         "priority_after_s": 21_600},
                    ],
                    traffic__sources=[
                        source(regions={"east": 0.6, "west": 0.4},
                               tiers={"chat": 0.5, "batch": 0.5})
                    ],
                    objective={"periods": "all", "defer": "cheapest", "reserve": "one_year"},
                    horizon={"duration_s": 86_400, "period_s": 3600},
                ), stored), simulate.Options(policy=policy, requests=True), silent,
            )  # fmt: skip
            (row,) = run.document["policies"].values()
            requests = run.tables[REQUESTS]
            batch = requests.filter(requests["tier"] == "batch")
            sum_of_ends = row["completed"] + row["rejected"] + row["unfinished"]
            yield (
                int((~batch["met"].fill_null(value=False)).sum()),
                len(batch),
                abs(row["arrived"] - sum_of_ends),
            )


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:36} {value}")
