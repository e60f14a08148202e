"""A cap bounds the power, costs decodes little and prompts more, and never speeds anything up."""

import numpy as np
import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.power import cap_curves, power_model
from simulation.errors import SimulationError
from simulation.performance.curves import evaluate, scale_curve
from simulation.performance.graph import operator_graph
from simulation.performance.power import CapCurve, PowerAtLoad, PowerCap, cap_power
from simulation.performance.specs import Arrangement, EngineSettings, Provenance

MEASURED = Provenance("measured", "test")
PROFILES = [
    catalogue.profiles()["llama-3.1-8b", "A100-80GB", 2].curve,
    catalogue.profiles()["llama-3.1-70b", "H100-SXM", 4].curve,
]


@pytest.mark.parametrize("curve", PROFILES)
def test_each_phase_slows_by_its_factor(curve):
    slower = scale_curve(curve, 1.5, 1.1)
    b = np.array([1.0, 16.0, 64.0])
    decodes = [evaluate(each, b, 1000 * b, 0, 0) for each in (curve, slower)]
    np.testing.assert_allclose(decodes[1], 1.1 * decodes[0])
    tokens = np.array([64.0, 512.0, 2048.0])
    prompts = [evaluate(each, 0, 0, tokens, tokens**2 / 2) for each in (curve, slower)]
    np.testing.assert_allclose(prompts[1], 1.5 * prompts[0])
    mixed = [evaluate(each, b, 1000 * b, tokens, tokens**2 / 2) for each in (curve, slower)]
    assert (1.1 * mixed[0] <= mixed[1] + 1e-12).all() and (mixed[1] <= 1.5 * mixed[0]).all()


def test_a_grid_reads_its_weights_as_fast_as_decodes():
    graph_curve = catalogue_roofline().curve
    slower = scale_curve(graph_curve, 2.0, 1.0)
    one = [float(evaluate(each, 1.0, 500.0, 0, 0)) for each in (graph_curve, slower)]
    assert one[1] == pytest.approx(one[0])
    long = [float(evaluate(each, 0, 0, 8192.0, 8192.0**2 / 2)) for each in (graph_curve, slower)]
    assert 1.8 * long[0] < long[1] <= 2.0 * long[0]


def catalogue_roofline():
    from planner.inputs.catalogue.estimate_calibration import efficiencies
    from simulation.performance.roofline import roofline_profile

    shape, gpu = catalogue.model("llama-3.1-70b").shape, catalogue.gpu("H100-SXM")
    return roofline_profile(
        shape, gpu, Arrangement(tp=4, weights="fp8"), efficiencies(),
        EngineSettings(256, 8192, 400_000),
    )  # fmt: skip


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_power_stays_below_the_cap_and_below_that_without_one(share):
    gpu, shape = catalogue.gpu("H100-SXM"), catalogue.model("llama-3.1-70b").shape
    graph = operator_graph(shape, Arrangement(tp=4))
    free = power_model(gpu)
    limited = cap_power(free, PowerCap(share, 0.8))
    b = np.array([1.0, 32.0, 256.0])
    load = 0.03, b, 1000 * b, np.array([0.0, 256.0, 2048.0]), np.array([0.0, 1e5, 1e6])
    before, after = (PowerAtLoad(model, gpu, (graph,)).watts(*load) for model in (free, limited))
    assert (after <= share * gpu.tdp_w + 1e-9).all() and (after <= before + 1e-9).all()


@pytest.mark.parametrize("phase", [0, 1])
def test_published_curves_rise_to_the_full_speed(phase):
    curve = cap_curves()[phase]
    caps = np.linspace(curve.cap[0], 1.0, 30)
    speeds = [curve.speed_at(float(cap)) for cap in caps]
    assert (np.diff(speeds) >= 0).all() and speeds[-1] == 1.0
    assert curve.speed_at(1.4) == 1.0
    assert (np.array(speeds) >= caps - 0.2).all()
    with pytest.raises(SimulationError):
        curve.speed_at(0.9 * float(curve.cap[0]))


def test_decodes_lose_less_than_prompts_where_both_are_measured():
    prefill, decode = cap_curves()
    for cap in np.linspace(0.53, 0.99, 20):
        assert decode.speed_at(cap) >= prefill.speed_at(cap)


@pytest.mark.parametrize(
    ("cap", "speed"), [([0.5, 0.5], [0.6, 1]), ([0.5, 1], [1, 0.9]), ([0.5, 1], [0.5, 1.2])]
)
def test_a_curve_that_cannot_be_is_refused(cap, speed):
    with pytest.raises(SimulationError):
        CapCurve(np.array(cap, float), np.array(speed, float), MEASURED)
