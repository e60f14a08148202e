"""What instances carry together: laws of the curve, and fresh simulations beside it."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.fleet import KvLink, Tier
from simulation.sizing.capacity import SizingCase, capacity, isolated_role
from simulation.sizing.pool import (
    MAX_INSTANCES,
    SIMULATED,
    PoolCurve,
    PoolPoint,
    falling_root,
    fewest_instances,
    interpolate_points,
    pool_curve,
)
from simulation.sizing.trial import RequestDraws, SharedPrompts, Trial
from simulation.trace import PrefixBlocks
from tests.simulation.builders import profile

RNG = np.random.default_rng(0)
SAMPLE = (
    np.clip(RNG.lognormal(6.5, 1, 2000), 1, 8000).astype(int),
    np.clip(RNG.lognormal(4, 0.8, 2000), 1, 400).astype(int),
)
SPEED = profile(
    alpha=0.02, beta=1e-4, gamma=0.02, delta=1e-4, max_batch=128, budget=2048, kv=200_000, tp=4
)
TIGHT = Tier("t", ttft_s=0.8, tbt_s=0.1)


@pytest.fixture(scope="module")
def tight() -> PoolCurve:
    return pool_curve(SizingCase(SPEED, SAMPLE, TIGHT))


def test_one_instance_is_its_capacity_and_more_carry_more_each(tight: PoolCurve) -> None:
    each = tight.max_rps / np.arange(1, MAX_INSTANCES + 1)
    assert (
        tight.max_rps[0]
        == tight.alone.max_rps
        == capacity(SizingCase(SPEED, SAMPLE, TIGHT)).max_rps
    )
    assert (np.diff(tight.max_rps) > 0).all()
    assert each[1] > 1.1 * each[0] and each[7] > 1.2 * each[0] and each[63] > each[7]
    full = capacity(SizingCase(SPEED, SAMPLE, Tier("any"))).max_rps
    assert each[63] < 1.01 * full


def test_the_tier_is_met_just_below_and_missed_just_above(tight: PoolCurve) -> None:
    """Of pools that the curve simulates and of one that it reads in between, with other seeds."""
    for n in (2, 6, 16):
        pools = isolated_role(SizingCase(SPEED, SAMPLE, TIGHT), n)[0]
        fresh = Trial(pools, RequestDraws(SAMPLE, seed=99, requests=40_000), TIGHT)
        for factor, met in ((0.95, True), (1.05, False)):
            share, judged = fresh.measured_attainment(fresh.at(factor * tight.max_rps[n - 1]))
            assert (share >= TIGHT.attainment) == met
            assert judged > 30_000


def test_how_many_are_missing_does_not_depend_on_how_many_there_are(tight: PoolCurve) -> None:
    load = 0.9 * float(tight.planned_tps(MAX_INSTANCES)[15])
    assert (
        len(
            {
                fewest_instances(tight.planned_tps(most), load)
                for most in (1, 2, 8, 16, MAX_INSTANCES)
            }
        )
        == 1
    )


def test_what_to_count_on_never_falls_with_the_pool(tight: PoolCurve) -> None:
    falling = replace(tight, max_rps=np.arange(1, 9) * [1.0, 1.2, 1.1, 1.3, 1.3, 0.9, 1.0, 1.1])
    n = np.arange(1, 9)
    for most in range(1, 9):
        each = falling.planned_tps(most) / n / falling.mean_isl
        assert (np.diff(each) >= -1e-12).all()
        assert (each[:most] <= falling.max_rps[:most] / n[:most] + 1e-12).all()
        assert each[most - 1] == pytest.approx(falling.max_rps[most - 1] / most)
        assert each[-1] == pytest.approx(max(falling.max_rps[-1] / 8, each[most - 1]))
    assert falling.planned_tps(4)[3] == pytest.approx(4 * 1.3 * tight.mean_isl)
    assert falling.planned_tps(8)[0] == pytest.approx(0.9 * tight.mean_isl)


def test_where_saturation_binds_instances_do_not_help_each_other() -> None:
    curve = pool_curve(SizingCase(SPEED, SAMPLE, Tier("any")))
    assert curve.tps == pytest.approx(curve.tps[0] * np.arange(1, MAX_INSTANCES + 1))
    assert len(curve.points) == 1


def test_prefill_and_decode_pools_have_curves_of_their_own() -> None:
    """Prompts wait behind prompts, so that prefill gains most; a batch evens gaps out already. The
    senders before a decode pool take turns: one link would be full long before the pool is."""
    link = KvLink(1e5, 2e10)
    prefill = pool_curve(SizingCase(SPEED, SAMPLE, TIGHT, role="prefill"))
    decode = pool_curve(SizingCase(SPEED, SAMPLE, TIGHT, role="decode", link=link))
    gain = [curve.max_rps[15] / 16 / curve.max_rps[0] for curve in (prefill, decode)]
    assert gain[0] > 1.5 > 1.3 > gain[1] >= 1.0
    alone_sends = link.bytes_s / (link.kv_bytes_per_token * SAMPLE[0].mean())
    assert decode.max_rps[63] > alone_sends


def test_between_pools_what_each_carries_is_linear_in_one_over_root_n() -> None:
    def law(n: float) -> float:
        return 5.0 - 3.0 / np.sqrt(n)

    points = [PoolPoint(n, n * law(n), 1, 1) for n in (1, *SIMULATED)]
    n = np.arange(1, MAX_INSTANCES + 1)
    assert interpolate_points(points) == pytest.approx(n * law(n))
    few = interpolate_points(points[:4])
    assert few[:4] == pytest.approx(n[:4] * law(n[:4]))
    assert few[4:] == pytest.approx(n[4:] * law(4))


@pytest.mark.parametrize("guess", [0.01, 0.3, 0.69, 0.71, 1.0])
def test_the_root_is_found_from_any_guess(guess: float) -> None:
    asked = []

    def f(x: float) -> float:
        asked.append(x)
        return 8 * (0.7**3 - x**3)

    assert falling_root(f, guess, 0.04, 0.004) == pytest.approx(0.7, abs=0.004)
    assert len(asked) < 12
    assert falling_root(lambda x: 1.0, guess, 0.04, 0.004) == 1.0


def test_the_same_seed_gives_the_same_curve() -> None:
    curve, two = (
        pool_curve(SizingCase(SPEED, SAMPLE, TIGHT, seed=4), max_instances=2) for _ in range(2)
    )
    assert (curve.max_rps == two.max_rps).all() and curve.points == two.points


def conversation(turns: int) -> SharedPrompts:
    """Prompts of 4 blocks of 200 tokens; those of ``turns`` in a row begin with the same 3."""
    n = 3000
    same = np.repeat(np.arange(n // turns + 1), turns)[:n] * 4
    ids = np.stack([same, same + 1, same + 2, 1_000_000 + np.arange(n)], axis=1).ravel()
    blocks = PrefixBlocks(4 * np.arange(n + 1), ids, 200)
    return SharedPrompts(np.full(n, 800, np.int32), np.full(n, 30, np.int32), blocks)


def test_what_prompts_share_is_carried_for_next_to_nothing() -> None:
    """Nothing is shared where every conversation has one turn; of long ones three quarters are."""
    rates = {}
    for turns in (1, 30):
        talks = conversation(turns)
        lengths = (talks.isl, talks.osl)
        rates[turns] = [
            pool_curve(
                SizingCase(SPEED, lengths, TIGHT, role=role, blocks=talks.blocks), max_instances=4
            ).max_rps
            for role in ("both", "prefill")
        ]
    plain = pool_curve(SizingCase(SPEED, lengths, TIGHT), max_instances=4).max_rps
    assert rates[1][0] == pytest.approx(plain, rel=0.05)
    assert (rates[30][0] > 1.1 * rates[1][0]).all()
    assert (rates[30][1] > 1.5 * rates[1][1]).all()


def test_requests_come_again_as_strangers() -> None:
    talks = conversation(3).repeat(3100)
    assert len(talks.isl) == len(talks.blocks) == 3100
    first, again = talks.blocks.rows(slice(0, 3000)).ids, talks.blocks.rows(slice(3000, 3100)).ids
    assert not set(first) & set(again)
    assert (np.diff(np.sort(np.unique(talks.blocks.ids))) == 1).all()
    half = conversation(3).repeat(10, draw=1)
    assert (half.isl == 800).all() and len(half.blocks) == 10
