"""Power of the catalogue: plausible for every GPU type, and what the measured rows say."""

import numpy as np
import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.power import SIBLINGS, host_watts, power_model
from simulation.performance.graph import operator_graph
from simulation.performance.power import PowerAtLoad
from simulation.performance.specs import Arrangement

WITH_TDP = sorted(name for name, gpu in catalogue.gpus().items() if gpu.tdp_w is not None)


@pytest.mark.parametrize("name", WITH_TDP)
def test_every_gpu_has_power_by_load_and_a_host(name):
    gpu = catalogue.gpu(name)
    model = power_model(gpu)
    assert model.provenance.source and model.checks
    graph = operator_graph(catalogue.shape("llama-3.1-8b"), Arrangement())
    batch = np.array([1.0, 8.0, 64.0, 256.0])
    watts = PowerAtLoad(model, gpu, (graph,)).watts(0.05, batch, 1000 * batch)
    assert (watts >= gpu.idle_w).all() and (watts <= gpu.tdp_w).all()
    assert (np.diff(watts) >= 0).all()
    host, source = host_watts(gpu)
    assert 0 < host < gpu.tdp_w and source.kind in ("published", "assumed")


def test_siblings_take_the_measured_parameters_and_say_so():
    assert {name for names in SIBLINGS.values() for name in names} <= set(catalogue.gpus())
    h100, sibling = (power_model(catalogue.gpu(name)) for name in ("H100-SXM", "H200"))
    assert sibling.memory == h100.memory and "as H100-SXM" in sibling.provenance.source
    other = power_model(catalogue.gpu("L4"))
    assert "never measured" in other.provenance.source
    assert other.checks[0].mape > h100.checks[0].mape


def test_published_hosts_by_hand():
    # DGX A100: 1,500 W idle, 8 x 63 W of it GPUs; DGX H100: 2,800 W and 8 x 75 W.
    assert host_watts(catalogue.gpu("A100-80GB"))[0] == pytest.approx((1500 - 504) / 8)
    assert host_watts(catalogue.gpu("H100-SXM"))[0] == pytest.approx((2800 - 600) / 8)


def test_a_measured_deployment_from_the_file_alone():
    # ML.ENERGY, Llama-3.1-70B in bf16 on 4 H100, batch 128: 32.8 ms, 546 W per GPU.
    gpu = catalogue.gpu("H100-SXM")
    graph = operator_graph(catalogue.shape("llama-3.1-70b"), Arrangement(tp=4))
    watts = PowerAtLoad(power_model(gpu), gpu, (graph,)).watts(0.0328, 128.0, 128 * 600.0, 60.0)
    assert watts == pytest.approx(546, rel=0.15)


def test_measured_power_of_an_amd_gpu_rises_with_the_load():
    # InferenceX, DeepSeek-R1 in fp8 on 8 MI355X: 4 and 64 in flight, 508 and 721 W per GPU.
    gpu = catalogue.gpu("MI355X")
    graph = operator_graph(catalogue.shape("deepseek-r1"), Arrangement(tp=8, weights="fp8"))
    batch, begun = np.array([4.0, 64.0]), np.array([4.0, 64.0]) / 920
    load = [0.0105, 0.0266], batch, 1380 * batch, 920 * begun, 920**2 / 2 * begun
    watts = PowerAtLoad(power_model(gpu), gpu, (graph,)).watts(*load)
    assert watts == pytest.approx([508, 721], rel=0.15)
    assert gpu.idle_w < watts[0] < watts[1]
    sibling = power_model(catalogue.gpu("MI300X"))
    assert sibling.memory == power_model(gpu).memory and "MI355X" in sibling.provenance.source
