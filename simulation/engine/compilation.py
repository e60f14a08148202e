"""Compilation of all entry points before the first simulation, into the cache on disk."""

import numpy as np

from simulation.arrays import IntArray
from simulation.early_stop import LateCounter
from simulation.engine.run import simulate
from simulation.faults import Crash
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import GpuSpec, Provenance
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.static import Static
from simulation.policy import Actions, Observation, ScalingPolicy
from simulation.trace import Trace


def warm_up() -> float:
    """Replay one request under three policies, to compile every entry point; return wall seconds.

    The first policy uses every action. The second repeats its decisions (``Hold``), which has an
    entry point of its own. The third has a compiled guard.
    """
    source = Provenance("assumed", "warm-up only")  # any valid numbers will do
    profile = LinearProfile("m", "g", 1, 0.01, 0.0, 0.01, 0.0, 4, 64, 1024, source)
    gpu = GpuSpec("g", 1e9, 1.0, 1.0, 1.0, source)
    fleet = Fleet(
        tiers=(Tier("t"),),
        regions=(Region("r", 1.0, 1.0),),
        pools=(Pool("m", "r", profile, gpu, 1, 0, 2, 1.0, 1.0),) * 2,
        latency_s=np.zeros((1, 1)),
        faults=(Crash(0, 1.5),),
    )
    zero, single = np.zeros(1), np.ones(1, np.int32)
    code = np.zeros(1, np.int16)
    trace = Trace(
        zero, single, single, code, code, code, ("m",), ("r",), ("t",), 0.0, "synthesised"
    )
    schedule = FixedSchedule([0.0], np.ones((1, 2), np.int64))
    guarded = GuardedPlan(schedule, np.inf, np.inf, np.inf, interval_s=1.0, recorded=1)
    policies = _PolicyWithEveryAction(), Static([1, 1], interval_s=1.0), guarded
    runs = [
        simulate(trace, fleet, policy, duration_s=3.0, watch=LateCounter(fleet.tiers, 3.0))
        for policy in policies
    ]
    guarded.never_acts(fleet, guarded.recorded_observations)
    return sum(run.wall_seconds for run in runs)


class _PolicyWithEveryAction(ScalingPolicy):
    """Policy that uses every action, so that all of them are compiled."""

    name = "everything"
    interval_s = 1.0

    def reset(self, fleet: Fleet) -> IntArray:
        """Return one instance for every pool."""
        return np.ones(len(fleet.pools), np.int64)

    def decide(self, observation: Observation) -> Actions:
        """Set every field of ``Actions`` that compiled code applies, so that it is compiled."""
        ones = np.ones(len(observation.ready))
        targets = ones.astype(np.int64)
        return Actions(
            targets=targets, soft_s=1.0, firm=ones > 0, max_batch=targets, speed=ones,
            kv_share=ones, moves=np.array([[0, 1], [0, 0]]),
        )  # fmt: skip
