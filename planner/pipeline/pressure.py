"""The pressure test (methods.md D7; HeteroScale, Algorithm 1): what one instance shows when it
carries what it was sized for. Those readings are the targets of proportional control."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.errors import ScenarioError
from planner.pipeline.flat import fleet_of
from simulation.engine import simulate
from simulation.fleet import Fleet
from simulation.policies.flat import Flat
from simulation.policies.recording import Recording
from simulation.trace import Trace

if TYPE_CHECKING:
    from planner.pipeline.replay import Study

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
REQUESTS = 4_000  # of one test
WARM_UP = 0.2  # share of the test before anything is read
MOST = 9  # instances of one role, where prefill and decode are apart
READ = ("prefill_tps", "decode_tps", "busy", "sm_activity", "ttft_s", "tbt_s")
SIGNALS = {
    "prefill-tps": "prefill_tps",
    "decode-tps": "decode_tps",
    "prefill-gpu": "busy",
    "decode-gpu": "busy",
    "prefill-sm": "sm_activity",
    "decode-sm": "sm_activity",
}


@dataclass(frozen=True, slots=True, eq=False)
class Pressure:
    """Readings of one instance at its rate, by signal, shape ``[pools]``; NaN where a pool does not
    run or was not reached."""

    readings: dict[str, FloatArray]

    def of(self, signal: str) -> FloatArray:
        """Targets per pool for one of the proportional signals, with the mean of the others where
        a pool has none; raises ScenarioError where nothing was read."""
        values = self.readings[SIGNALS[signal]]
        there = values > 0
        if not there.any():
            raise ScenarioError(
                f"policies: the pressure test read no {signal}; give the policy a target."
            )
        return np.where(there, values, values[there].mean())


def pressure_test(study: Study) -> Pressure:
    """One instance of each pool (or a few of both roles in the proportion in which they carry the
    same load) under Poisson arrivals of the model's own lengths at the rate it was sized for."""
    if "pressure" not in study.kept:
        study.kept["pressure"] = _test(study)
    found: Pressure = study.kept["pressure"]
    return found


def _test(study: Study) -> Pressure:
    index = study.hardware.pool_index
    out = {name: np.full(len(index), np.nan) for name in READ}
    tested: dict[tuple[int, ...], dict[str, FloatArray]] = {}
    for m in range(len(study.hardware.models)):
        for r in range(len(study.hardware.regions)):
            here = [p for p, at in enumerate(index) if at[:2] == (m, r)]
            for group in _groups(study, here):
                # Regions do not differ in how fast an instance is.
                kind = (m, *(index[p][2] for p in group))
                if kind not in tested:
                    tested[kind] = _readings(study, group)
                for name in READ:
                    out[name][group] = tested[kind][name]
    return Pressure(out)


def _groups(study: Study, pools: list[int]) -> list[list[int]]:
    """Pools that are tested together: each by itself, prefill with the first decode pool."""
    index, columns = study.hardware.pool_index, study.hardware.columns
    theta = study.sizes.theta_tps
    able = [p for p in pools if theta[index[p][0], index[p][2]] > 0]
    by_role = {
        role: [p for p in able if columns[index[p][2]].role == role]
        for role in ("both", "prefill", "decode")
    }
    pairs = []
    if by_role["prefill"] and by_role["decode"]:
        first = by_role["decode"][0]
        pairs = [[p, first] for p in by_role["prefill"]]
        pairs += [[by_role["prefill"][0], p] for p in by_role["decode"][1:]]
    return [[p] for p in by_role["both"]] + pairs


def _readings(study: Study, group: list[int]) -> dict[str, FloatArray]:
    index, theta = study.hardware.pool_index, study.sizes.theta_tps
    m = index[group[0]][0]
    each = np.array([theta[m, index[p][2]] for p in group])
    counts = _even(each)
    isl, osl = study.traffic.lengths[m]
    rate = float((each * counts).min()) / float(isl.mean())
    rng = np.random.default_rng([study.scenario.seed, 7])
    drawn = rng.integers(0, len(isl), REQUESTS)
    arrival = np.cumsum(rng.exponential(1 / rate, REQUESTS))
    whole = fleet_of(study, np.zeros(len(index), np.int64))
    pools = tuple(
        replace(whole.pools[p], initial=int(n), minimum=0, maximum=max(int(n), 1), tiers=None)
        for p, n in zip(group, counts, strict=True)
    )
    tier = next(i for i, t in enumerate(whole.tiers) if not t.deferrable)
    region = [one.name for one in whole.regions].index(pools[0].region)
    fleet = Fleet(whole.tiers, whole.regions, pools, whole.latency_s, whole.routing)
    trace = Trace(
        arrival_s=arrival,
        input_tokens=isl[drawn].astype(np.int32),
        output_tokens=osl[drawn].astype(np.int32),
        model=np.zeros(REQUESTS, np.int16),
        region=np.full(REQUESTS, region, np.int16),
        tier=np.full(REQUESTS, tier, np.int16),
        models=(pools[0].model,),
        regions=tuple(one.name for one in whole.regions),
        tiers=tuple(one.name for one in whole.tiers),
        start_s=0.0,
        provenance="synthesised",
    )
    end_s = float(arrival[-1])
    policy = Recording(Flat(counts, interval_s=end_s * WARM_UP))
    simulate(trace, fleet, policy, seed=study.scenario.seed, duration_s=end_s * 1.0001)
    seen = [one.signals for one in policy.seen[1:] if one.signals is not None]
    with np.errstate(invalid="ignore"):
        means = {name: np.mean([getattr(one, name) for one in seen], axis=0) for name in READ}
    return {
        name: value / counts if name.endswith("_tps") else value for name, value in means.items()
    }


def _even(each: FloatArray) -> IntArray:
    """Few instances of each role that carry about the same: within ``MOST`` of either."""
    if len(each) == 1:
        return np.ones(1, np.int64)
    found = np.ones(2, np.int64)
    best = np.inf
    for prefill in range(1, MOST + 1):
        for decode in range(1, MOST + 1):
            carries = np.array([prefill, decode]) * each
            uneven = float(carries.max() / carries.min()) - 1
            # A little unevenness is worth fewer instances to simulate.
            if uneven + 0.01 * (prefill + decode) < best:
                best = uneven + 0.01 * (prefill + decode)
                found = np.array([prefill, decode], np.int64)
    return found
