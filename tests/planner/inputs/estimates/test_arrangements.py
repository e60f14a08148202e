"""GPUs over PCIe: what measured collectives say, and that nobody has to use them as one group."""

import numpy as np
import pytest

from bench.accuracy.consistency import max_tokens_per_s
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.estimates.at_rate import (
    gpu_uses,
    narrower_arrangements,
    narrower_is_faster_sentence,
)
from planner.inputs.estimates.deployment_rows import deployment
from simulation.performance.efficiency import modelled_s
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.specs import Arrangement
from simulation.performance.work import Collective, iteration

# NCCL over the GPUs of one L40S server (aiconfigurator systems/data @ 095f58a, Apache-2.0): ms of
# an all-reduce of 16 MiB by GPUs.
MEASURED_MS = {2: 0.850, 4: 4.922, 8: 19.376}


def on(gpu: str, tp: int, users: float) -> Deployment:
    where = Arrangement(tp=tp, moe_tp=tp)
    shape = catalogue.shape("llama-3.1-8b")
    return Deployment(shape, catalogue.gpu(gpu), where, 1155.0, 211.0, users, rounds=1e6)


@pytest.mark.parametrize(("gpus", "ms"), MEASURED_MS.items())
def test_an_all_reduce_over_pcie_takes_what_was_measured(gpus: int, ms: float) -> None:
    of = Collective(
        name="reduce", after="", count=1, axis="tokens", kind="all_reduce", gpus=gpus, width=8192
    )
    entry = efficiencies().find("all_reduce", "ada", "bf16")
    it = iteration(np.zeros(1), 0.0, np.full(1, 1024.0), 0.0)  # 1,024 rows of 8,192 in 16 bits
    seconds = modelled_s(of, it, catalogue.gpu("L40S"), entry)
    assert seconds[0] == pytest.approx(ms * 1e-3, rel=0.2)


def test_the_share_of_a_link_falls_with_gpus_only_where_they_share_it() -> None:
    for family, falls in (("ada", True), ("hopper", False), ("ampere", False)):
        entry = efficiencies().find("all_reduce", family, "bf16")
        shares = [entry.share_of_link(gpus) for gpus in (2, 4, 8)]
        assert shares[0] == pytest.approx(entry.bandwidth)
        assert (shares == sorted(set(shares), reverse=True)) == falls


def test_widths_are_halved_with_their_experts() -> None:
    wheres = list(narrower_arrangements(Arrangement(tp=8, moe_tp=1, moe_ep=8)))
    assert [(where.tp, where.moe_ep) for where in wheres] == [(4, 4), (2, 2), (1, 1)]
    assert not list(narrower_arrangements(Arrangement(tp=3, moe_tp=3)))


@pytest.mark.parametrize("gpu", ["L40S", "H100-SXM", "RTX-4090"])
@pytest.mark.parametrize("users", [1.0, 6.0, 256.0])
def test_more_gpus_of_a_kind_never_carry_less_however_they_are_arranged(
    gpu: str, users: float
) -> None:
    rates = [max_tokens_per_s(on(gpu, tp, users)) for tp in (1, 2, 4, 8)]
    assert rates == sorted(rates)


def test_a_group_that_is_too_wide_says_what_fewer_give_and_how_all_give_more() -> None:
    """8 L40S as one group give less than 2 of them, which is said with both figures."""
    (sentence,) = narrower_is_faster_sentence(on("L40S", 8, 256.0))
    wide, two = gpu_uses([on("L40S", 8, 256.0), on("L40S", 2, 256.0)])
    assert wide.tokens_per_s < two.tokens_per_s
    assert sentence.startswith(
        f"2 of the 8 GPUs give {two.tokens_per_s:,.0f} tokens/s here, all as"
    )
    assert f"one group {wide.tokens_per_s:,.0f}:" in sentence
    assert "8 of 1 GPU each give" in sentence
    assert not narrower_is_faster_sentence(on("H100-SXM", 8, 1.0))


def test_weights_that_are_made_to_fit_leave_the_stated_cache_as_it_is() -> None:
    row = {"model": "llama-3.1-70b", "gpu": "H100-SXM", "isl": 1000, "osl": 200, "concurrency": 8}
    for kv_cache in ("fp8", "bf16"):
        fitted = deployment(row | {"engine": "trtllm", "kv_cache": kv_cache})
        assert (fitted.decode.weights, fitted.decode.kv_cache) == ("fp8", kv_cache)
