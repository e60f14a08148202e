"""Capacity of pools at other limits and speeds, by closed forms."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.sizing.closed_form import closed_factors, closed_rps
from planner.domain.sizing.sizing import Sizes
from planner.domain.verification.profile_error import slower_or_faster
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from simulation.arrays import FloatArray
from simulation.sizing.capacity import SizingCase
from simulation.sizing.pool import MAX_INSTANCES, pool_curve
from tests.planner.domain import builders as make


@pytest.fixture(scope="module")
def coarse_by_default() -> None:
    """Size as in the product, because estimates are compared with simulated sizes."""


LENGTHS = np.full(500, 900, np.int32), np.full(500, 60, np.int32)
PROFILE = {"gpu": "G", "model": "m", "alpha_ms": 12, "beta_ms": 0.3, "gamma_ms": 8,
           "delta_ms": 0.12}  # fmt: skip


def hardware(
    *profiles: Mapping[str, object], ttft_ms: float = 600.0, tbt_ms: float = 60.0
) -> Hardware:
    roles = [{**PROFILE, **profile} for profile in profiles or ({},)]
    serving = [{"kv_transfer": {"gb_s": 100}}] if len(roles) > 1 else []
    tiers = [{"name": "chat", "ttft_ms": ttft_ms, "tbt_ms": tbt_ms, "percentile": 95}]
    scenario = make.scenario(profiles=roles, serving=serving, tiers=tiers)
    return build_hardware(scenario, NO_USER_FACTS, spot=True)


def factors(before: Hardware, after: Hardware, g: int = 0) -> FloatArray:
    return closed_factors(*(closed_rps(one, 0, g, LENGTHS) for one in (before, after)))


@pytest.mark.parametrize("g", [0, 1])
def test_looser_limits_never_lower_a_factor(g: int) -> None:
    roles = {"role": "prefill"}, {"role": "decode"}
    before = hardware(*roles)
    by_limit = [
        factors(before, hardware(*roles, ttft_ms=600 * times, tbt_ms=60 * times), g)
        for times in (0.5, 1, 2)
    ]
    assert by_limit[1] == pytest.approx(np.ones(MAX_INSTANCES))
    assert (np.diff(by_limit, axis=0) >= 0).all()
    assert by_limit[0][0] < 1 < by_limit[2][0]


def test_the_factors_are_near_those_of_simulated_pools() -> None:
    before = hardware()
    slower = {at: slower_or_faster(p, 0.2, 1) for at, p in before.profiles.items()}
    changed = hardware(ttft_ms=450), replace(before, profiles=slower)
    first, *curves = (
        pool_curve(SizingCase(one.profiles[0, 0], LENGTHS, one.tiers[0])).max_rps
        for one in (before, *changed)
    )
    for after, curve in zip(changed, curves, strict=True):
        found = factors(before, after)
        assert found == pytest.approx(curve / first, rel=0.1)
        assert np.abs(found / (curve / first) - 1).mean() < 0.04


def test_a_replica_without_a_rate_has_no_capacity_and_an_unknown_one_keeps_its_own() -> None:
    known, none = np.array([2.0, 3.0]), np.full(2, np.nan)
    assert (closed_factors(known, none) == 0).all()
    assert (closed_factors(none, known) == 1).all()
    # Runs of older versions know one instance alone.
    assert (closed_factors(np.array([2.0, np.nan]), known / 2) == 0.5).all()


def test_changed_sizes_never_carry_more_per_instance_than_larger_pools() -> None:
    pool_tps = np.arange(1.0, MAX_INSTANCES + 1)[None, None] * 100
    sizes = Sizes(pool_tps[..., -1] / MAX_INSTANCES, pool_tps, {}, ())
    looser = closed_factors(np.array([[[1.0]], [[1.0]]]), np.array([[[3.0]], [[1.2]]]))
    each = sizes.scaled(looser).pool_tps[0, 0] / np.arange(1, MAX_INSTANCES + 1)
    assert (np.diff(each) >= -1e-9).all()
    assert each[-1] == pytest.approx(100 * looser[0, 0, -1])
