"""The control laws of llm-d against their published formulas, evaluated one by one in floats.

``epp_law_error`` is the largest difference in any signal or replica count.
"""

from __future__ import annotations

from math import ceil, floor, isnan
from typing import Any

import numpy as np

from simulation.policies.endpoint_picker import (
    CLAMP,
    EndpointPicker,
    quantile,
    replicas_by_latency,
    replicas_by_total,
)
from simulation.policy import LATENCY_BOUNDS_S, Observation
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

CASES, SEED = 20_000, 0
TTFT_S, TBT_S = 3.0, 0.1  # SLO of the published example


def figures() -> dict[str, Any]:
    """Return the figures of this capability."""
    rng = np.random.default_rng(SEED)
    return {"epp_law_error": max(_laws(rng), _signal(rng))}


def _laws(rng: np.random.Generator) -> float:
    """Return the largest error of the replicas asked for, on random readings."""
    s, total = rng.uniform(0, CLAMP, CASES), rng.uniform(0, 500, CASES)
    n = rng.integers(1, 60, CASES)
    r = rng.integers(0, n + 1)
    error = 0.0
    ours = replicas_by_latency(s, n, r, 0.55, 0.40)
    by_total = [replicas_by_total(total, target, n, 0.1) for target in (1.0, 16.0, 0.7, 1.5, 0.8)]
    for i in range(CASES):
        error = max(error, abs(int(ours[i]) - _published(s[i], int(n[i]), int(r[i]))))
        for target, asked in zip((1.0, 16.0, 0.7, 1.5, 0.8), by_total, strict=True):
            usage = total[i] / (target * n[i])
            expected = n[i] if abs(usage - 1) <= 0.1 else ceil(total[i] / target)
            error = max(error, abs(int(asked[i]) - int(expected)))
    return error


def _published(s: float, n: int, r: int) -> int:
    """Return the replicas of the published control law, for one reading."""
    credit = r / n if 0 < r < n else 1.0
    if s > 0.55:
        return n + ceil(n * (s * credit / 0.55 - 1))
    return n - floor(n * (1 - s / 0.40)) if s < 0.40 else n


def _signal(rng: np.random.Generator) -> float:
    """Return the largest error of the clamped mean, over histograms of random latencies."""
    policy = EndpointPicker("latency", ttft_s=TTFT_S, tbt_s=TBT_S)
    policy.reset(fleet(pool(initial=4)))
    edges = [*LATENCY_BOUNDS_S, np.inf]
    raw: list[float] = []
    window: list[tuple[list[int], list[int]]] = []
    error = 0.0
    for look in range(2_000):
        seconds = rng.lognormal(rng.uniform(-2, 3), 0.8, rng.integers(0, 40))
        ttft = [int(((seconds > low) & (seconds <= high)).sum())
                for low, high in zip([0.0, *edges], edges, strict=False)]  # fmt: skip
        tbt = list(rng.permutation(ttft))
        policy.decide(_observed(15.0 * (look + 1), ttft, tbt))
        window = [*window, (ttft, tbt)][-4:]  # rates of one minute, read every 15 s
        sums = [[sum(column) for column in zip(*kind, strict=True)]
                for kind in zip(*window, strict=True)]  # fmt: skip
        shares = [_p90(sums[0], 1.0) / TTFT_S, _p90(sums[1], 0.1) / TBT_S]
        raw.append(min(max([share for share in shares if not isnan(share)], default=0.0), CLAMP))
        mean = sum(raw[-3:]) / len(raw[-3:])  # 45 s
        error = max(error, abs(float(policy.saturation[0]) - mean))
        ours = quantile(np.array([sums[0]]), LATENCY_BOUNDS_S)[0]
        if not isnan(ours):
            error = max(error, abs(float(ours) - _p90(sums[0], 1.0)))
    return error


def _observed(time_s: float, ttft: list[int], tbt: list[int]) -> Observation:
    return seen(time_s, 4, ttft_counts=np.array([ttft]), tbt_counts=np.array([tbt]))


def _p90(counts: list[int], scale: float) -> float:
    """Return Prometheus' histogram_quantile(0.9, ...) of one histogram, bucket by bucket."""
    total = sum(counts)
    if not total:
        return float("nan")
    rank, below = 0.9 * total, 0
    for i, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = 0.0 if i == 0 else float(LATENCY_BOUNDS_S[i - 1]) * scale
            high = float(LATENCY_BOUNDS_S[i]) * scale
            return low + (high - low) * (rank - below) / count
        below += count
    return float(LATENCY_BOUNDS_S[-1]) * scale
