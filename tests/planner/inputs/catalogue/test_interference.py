"""The measured and published slowdowns of kernels side by side, beside the physical model."""

from itertools import product

import numpy as np
import pytest

from planner.domain.provisioning.levels import measured_on
from planner.inputs.catalogue.interference import published_interference
from planner.inputs.scenario.user_facts import UserFacts
from simulation.provisioning.interference import (
    GEMM_MEMORY_BOUND,
    latency_at_share,
    measured_at_share,
    modelled_over_table,
)

MEASURED = ("H100-SXM", "H200")
KINDS = ("gemm", GEMM_MEMORY_BOUND, "attention_prefill", "attention_decode", "elementwise")


def shipped(gpu: str):
    return measured_on(UserFacts(), [gpu])[gpu].interference


@pytest.mark.parametrize("gpu", MEASURED)
def test_every_pair_and_share_was_measured(gpu):
    table = shipped(gpu)
    assert set(table.pairs) == set(table.reserved) == set(product(KINDS, KINDS))
    assert set(table.alone) == set(KINDS) and not table.published
    for kind, other in table.pairs:  # time on a share, then beside another operator
        shares, alone = table.alone[kind]
        at = min(shares, key=lambda share: abs(share - 0.5))
        slowdown = table.reserved[kind, other] * alone[shares.index(at)]
        assert slowdown == pytest.approx(table.pairs[kind, other])


@pytest.mark.parametrize("gpu", MEASURED)
def test_measured_slowdowns_keep_the_laws_of_sharing_within_their_noise(gpu):
    """More of the GPU is not slower, a share is not faster, a neighbour does not help."""
    table = shipped(gpu)
    for kind in KINDS:
        slowdowns = np.array(table.alone[kind][1])
        assert (np.diff(slowdowns) <= 0.1 * slowdowns[:-1]).all(), kind
        assert (slowdowns >= 0.95).all() and slowdowns[-1] <= 1.2, kind
    assert min(table.reserved.values()) >= 0.95 and min(table.pairs.values()) >= 1.0


@pytest.mark.parametrize("gpu", MEASURED)
def test_arithmetic_scales_with_its_share_and_reading_saturates_early(gpu):
    table = shipped(gpu)
    for kind in ("gemm", "attention_prefill"):
        read = measured_at_share(table, kind, [0.25, 0.5])
        assert read == pytest.approx(latency_at_share(1.0, 1.0, 0.0, [0.25, 0.5]), rel=0.15)
    assert measured_at_share(table, GEMM_MEMORY_BOUND, 0.45) < 1.1


def test_a_share_does_not_protect_from_a_neighbour_that_reads_memory():
    """What the physical model cannot see: arithmetic that waits for memory that others read."""
    table = shipped("H100-SXM")
    assert table.reserved["gemm", GEMM_MEMORY_BOUND] > 2.0
    assert table.reserved["gemm", "attention_prefill"] < 1.2
    assert table.on_reserved_shares().pairs == table.reserved
    assert published_interference("A100-80GB").on_reserved_shares() is None


def test_slowdowns_at_an_even_split():
    table = published_interference("A100-80GB")
    assert table is not None
    assert table.pairs["attention_decode", "gemm"] == pytest.approx(1 / 0.7)
    assert table.pairs["gemm", "attention_decode"] == pytest.approx(2.0)
    assert table.pairs["all_reduce", "gemm"] == pytest.approx(1 / 0.9)
    assert published_interference("H100-SXM") is None
    assert shipped("A100-80GB").published and shipped("L4") is None


def test_a_larger_share_is_never_slower():
    table = published_interference("A100-80GB")
    assert table is not None
    for kind in table.alone:
        slowdowns = measured_at_share(table, kind, np.linspace(0.1, 1.0, 10))
        assert (np.diff(slowdowns) <= 1e-12).all()
        assert slowdowns[-1] == 1.0


def test_the_physical_model_is_never_slower_than_published_decode_attention():
    table = published_interference("A100-80GB")
    assert table is not None
    ratio = modelled_over_table(table)
    assert ratio.min() == pytest.approx(0.6)
    assert ratio.max() == pytest.approx(1.0)
