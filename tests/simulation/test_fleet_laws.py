"""Fleets, actions and faults drawn at random: every law holds, and bytes follow the seed."""

from dataclasses import fields

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.faults import Crash, FailedStarts, RandomCrashes, RegionOutage, SlowInstance
from simulation.fleet import BATCHING, KvLink, Tier, replica_switch_key
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from simulation.policies.wrappers.cost_limit import CostLimit
from simulation.policies.wrappers.scale_in import ScaleInOptions, ScaleInUndo
from simulation.policy import Actions
from simulation.start_times import Registration, StartUp
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.scripted_policies import asked_each_time

TIERS = ("fast", "slow", "late")
DURATION_S = 300.0


class Restless:
    """Asks for anything at all, by its own seed."""

    name = "restless"
    interval_s = 7.0

    def __init__(self, seed):
        self.seed = seed

    def reset(self, fleet):
        self.rng = np.random.default_rng(self.seed)
        return self._counts(fleet.pools)

    def _counts(self, pools):
        self.pools = pools
        return self.rng.integers(0, [pool.maximum + 2 for pool in pools])

    def decide(self, seen):
        n = len(self.pools)
        return Actions(
            targets=self._counts(self.pools),
            soft_s=float(self.rng.choice([0.0, 10.0, 40.0])),
            lend=self.rng.random(n) < 0.5,
            speed=self.rng.choice([0.5, 1.0, 2.0], n) if self.rng.random() < 0.5 else None,
            **self._roles(),
        )

    def _roles(self):
        """Any replicas change roles, and any decode pools take prompts over."""
        n = len(self.pools)
        moves = self.rng.integers(-3, 3, (n, n)).clip(0)
        kinds = [(replica_switch_key(pool), pool.role) for pool in self.pools]
        for p, q in np.argwhere(moves):
            if p == q or kinds[p][0] != kinds[q][0] or kinds[p][1] == kinds[q][1]:
                moves[p, q] = 0
        takes = [pool.role == "decode" and pool.batching == "chunked" for pool in self.pools]
        return {
            "moves": moves,
            "switch_s": float(self.rng.choice([0.0, 1.5])),
            "prompt_chunk": self.rng.integers(0, 40, n) * takes,
            "overflow_s": float(self.rng.choice([0.0, 1.0])),
        }


def random_start(rng):
    if rng.random() < 0.3:
        return None
    return StartUp(
        reclaim_s=2.0,
        same_architecture_s=4.0 if rng.random() < 0.5 else None,
        other_model_s=6.0 if rng.random() < 0.5 else None,
        local_s=8.0,
        remote_s=20.0,
        warm_hosts=int(rng.integers(0, 4)) if rng.random() < 0.5 else None,
        lent=int(rng.integers(0, 3)),
    )


def random_fleet(rng):
    pools = []
    for model in ("m", "n")[: int(rng.integers(1, 3))]:
        for region in "ab":
            apart = rng.random() < 0.5
            kinds = ["prefill", "decode"] if apart else ["both"] * int(rng.integers(1, 4))
            for role in kinds:
                named = [t for t in TIERS if rng.random() < 0.6]
                pools.append(
                    pool(
                        profile(kv=int(rng.integers(300, 2000))),
                        model=model,
                        region=region,
                        role=role,
                        link=KvLink(1.0, 2000.0, 5000.0) if role == "prefill" else None,
                        batching=str(rng.choice(BATCHING)),
                        maximum=int(rng.integers(1, 6)),
                        minimum=int(rng.integers(0, 2)),
                        startup_s=float(rng.choice([0.0, 5.0, 20.0])),
                        start_up=random_start(rng),
                        architecture=str(rng.choice(["", "llama"])),
                        tiers=tuple(named) if named and role == "both" else None,
                    )
                )
    faults = (
        RandomCrashes(float(rng.choice([0.0, 30.0, 200.0]))),
        FailedStarts(float(rng.choice([0.0, 0.3])), nth=(2,)),
        RegionOutage("a", 100.0, float(rng.choice([140.0, 1e5]))),
        RegionOutage("a", 120.0, 160.0),
        SlowInstance(0, 50.0, 90.0, 3.0),
        Crash(0, 60.0, 2),
    )
    return fleet(
        *pools,
        tiers=[Tier("fast"), Tier("slow", ttft_s=9.0), Tier("late", deferrable=True)],
        regions=("a", "b"),
        latency=[[0, 0.125], [0.25, 0]],
        registration=Registration(1.0, 0.3) if rng.random() < 0.5 else None,
        faults=faults[: int(rng.integers(0, 7))],
        retries=int(rng.integers(0, 3)),
    )


def random_requests(rng, n, **how):
    return trace(
        np.sort(np.floor(rng.uniform(0, DURATION_S, n) * 16) / 16),
        rng.integers(1, 120, n),
        rng.integers(1, 60, n),
        model=rng.integers(2, size=n),
        tier=rng.integers(3, size=n),
        region=rng.integers(2, size=n),
        models=("m", "n"),
        tiers=TIERS,
        regions=("a", "b"),
        **how,
    )


@pytest.mark.parametrize("block", range(3))
def test_whatever_happens(block):
    seen = np.zeros(7, np.int64)
    for seed in range(block * 15, block * 15 + 15):
        rng = np.random.default_rng(60_000 + seed)
        n = int(rng.integers(1, 600))
        requests = random_requests(rng, n)
        serving = random_fleet(rng)
        first, again = (
            simulate(requests, serving, Restless(seed), seed=seed, duration_s=DURATION_S)
            for _ in range(2)
        )
        for name in ("outcome", "pool", "first_token_s", "last_token_s"):
            a, b = getattr(first.requests, name), getattr(again.requests, name)
            assert a.tobytes() == b.tobytes()
        tokens = requests.output_tokens[first.requests.outcome == 0].sum()
        assert first.series.output_tokens.sum() <= requests.output_tokens.sum()
        seen += [
            first.totals.donated_s.sum() > 0,
            first.totals.reinstated.sum() > 0,
            first.totals.retried.sum() > 0,
            first.totals.starts[:, 1].sum() > 0,
            tokens > 0,
            first.totals.switches.sum() > 0,
            first.totals.diverted.sum() > 0,
        ]
    assert np.all(seen > 0), seen


def wrapped(policy, soft_s):
    return CostLimit(ScaleInUndo(ScaleInOptions(policy, soft_s=soft_s), reads=soft_s > 0), 1e9)


def test_a_decision_that_holds_changes_nothing_to_one_that_is_asked_each_time():
    moved = 0
    for seed in range(12):
        rng = np.random.default_rng(70_000 + seed)
        requests, serving = random_requests(rng, int(rng.integers(1, 600))), random_fleet(rng)
        pools, interval_s = len(serving.pools), float(rng.choice([2.0, 7.0, 30.0]))
        counts, soft_s = rng.integers(0, 4, (4, pools)), float(rng.choice([0.0, 20.0]))
        plan = FixedSchedule(np.array([0.0, 80.0, 91.0, 200.0]), counts)
        limits = {"prefill_tps": 150.0, "decode_tps": 80.0, "in_flight": 3.0}
        limits |= {"rise_s": 8.0, "fall_s": 30.0}
        for rule, follows, how in (
            (Static, counts[0], {}), (ScheduleFollower, plan, {}), (GuardedPlan, plan, limits),
        ):  # fmt: skip
            first, other = (
                simulate(
                    requests, serving,
                    wrapped(made(follows, interval_s=interval_s, **how), soft_s),
                    seed=seed, duration_s=DURATION_S,
                )
                for made in (rule, asked_each_time(rule))
            )  # fmt: skip
            for name in ("outcome", "pool", "first_token_s", "last_token_s"):
                a, b = getattr(first.requests, name), getattr(other.requests, name)
                assert a.tobytes() == b.tobytes()
            for part in ("series", "totals"):
                a, b = getattr(first, part), getattr(other, part)
                for field in fields(a):
                    np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))
            moved += int(first.totals.starts.sum())
    assert moved
