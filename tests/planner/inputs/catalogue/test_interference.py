"""The published slowdowns of kernels side by side, beside the physical model."""

import numpy as np
import pytest

from planner.inputs.catalogue.interference import published_interference
from simulation.provisioning.interference import measured_at_share, modelled_over_table


def test_slowdowns_at_an_even_split():
    table = published_interference("A100-80GB")
    assert table is not None
    assert table.pairs["attention_decode", "gemm"] == pytest.approx(1 / 0.7)
    assert table.pairs["gemm", "attention_decode"] == pytest.approx(2.0)
    assert table.pairs["all_reduce", "gemm"] == pytest.approx(1 / 0.9)
    assert published_interference("H100-SXM") is None


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
