"""Operator profiles of the catalogue's models on measured kernels."""

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.performance.curves import evaluate
from simulation.performance.efficiency import KINDS
from simulation.performance.profile import iteration_s, measured_range
from simulation.performance.roofline import operator_profile, roofline_profile
from simulation.performance.specs import Arrangement
from tests.simulation.performance.oracles import ideal_curve
from tests.simulation.performance.test_roofline import LIMITS, random_iterations
from tools.catalogue import operator_checks

kernels_of = cache(operator_checks.aic_kernels)
MEASURED = ("A100-80GB", "H100-SXM", "B200")  # one of each generation


def test_every_kind_has_factors_that_cannot_beat_the_peak() -> None:
    factors = efficiencies()
    assert {entry.kind for entry in factors.entries} == set(KINDS)
    for entry in factors.entries:
        assert 0 < entry.compute <= 1
        assert 0 < entry.bandwidth <= (4 if entry.kind == "elementwise" else 1.2)
        assert entry.floor_s >= 0
        assert entry.spread > 0
        assert entry.source


@pytest.mark.parametrize("gpu", sorted(hardware.gpus()))
def test_every_gpu_of_the_catalogue_has_a_roofline(gpu: str) -> None:
    spec = hardware.gpu(gpu)
    profile = roofline_profile(
        hardware.shape("llama-3.1-8b"), spec, Arrangement(), efficiencies(), LIMITS
    )
    alone = float(iteration_s(profile, 1, 1000, 0, 0))
    assert spec.bandwidth_bytes_s is not None
    assert alone > 15e9 / spec.bandwidth_bytes_s  # the weights once
    assert 0.05 < profile.spread < 1


@pytest.mark.parametrize("gpu", MEASURED)
def test_measured_profiles_never_beat_the_published_peaks(shared_data: Path, gpu: str) -> None:
    """Sums of real kernels, no tolerance: weights and KV cache once at the full bandwidth, all
    operations at the full rate."""
    spec, amounts = hardware.gpu(gpu), random_iterations()
    kernels = kernels_of(shared_data, gpu)
    for model, where in (
        ("llama-3.1-8b", Arrangement()),
        ("qwen3-32b", Arrangement(tp=4)),
        ("llama-3.1-70b", Arrangement(tp=8, weights="fp8" if gpu != "A100-80GB" else "bf16")),
    ):
        shape = hardware.shape(model)
        profile = operator_profile(shape, spec, where, kernels, efficiencies(), LIMITS)
        least = evaluate(ideal_curve(shape, spec, where), *amounts)
        assert (iteration_s(profile, *amounts) >= least).all()


def test_an_operator_profile_of_h100_is_measured_and_says_so(shared_data: Path) -> None:
    kernels = kernels_of(shared_data, "H100-SXM")
    shape, gpu = hardware.shape("llama-3.1-8b"), hardware.gpu("H100-SXM")
    profile = operator_profile(shape, gpu, Arrangement(), kernels, efficiencies(), LIMITS)
    assert profile.provenance.kind == "measured"
    inside = measured_range(profile, [64, 0, 64], [64 * 2048, 0, 64 * 100_000], [0, 2048, 0],
                            [0, 2048 * 1024, 0])  # fmt: skip
    np.testing.assert_array_equal(inside, [True, True, False])


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> pl.DataFrame:
    """Served deployments with the TPOT of both computed profiles."""
    return operator_checks.tpot_rows(shared_data)


def test_uncalibrated_sums_of_kernels_stay_near_served_deployments(rows: pl.DataFrame) -> None:
    """The limit of the project; what it came to is in docs and in bin/bench accuracy."""
    error = np.abs(rows["operator_ms"].to_numpy() / rows["silicon_tpot_ms"].to_numpy() - 1)
    assert rows.height == 527
    assert np.median(error) <= 0.15


def test_the_shipped_errors_are_those_of_the_shipped_factors(rows: pl.DataFrame) -> None:
    for model in operator_checks.MODELS:
        (check,) = (c for c in efficiencies().checks if model.split("/")[-1] in c.against)
        part = rows.filter(rows["model_path"] == model)
        error = part["roofline_ms"].to_numpy() / part["silicon_tpot_ms"].to_numpy() - 1
        assert check.rows == part.height
        assert check.median == pytest.approx(float(np.median(np.abs(error))), abs=2e-3)


def test_layers_left_out_are_predicted(shared_data: Path) -> None:
    assert operator_checks.iteration_error(shared_data) <= 0.03
