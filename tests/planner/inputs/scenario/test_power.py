"""Pools of a scenario know their power: by load where model and GPU are built in."""

from planner.inputs import catalogue
from planner.inputs.scenario.power import host_of, power_at_load, power_facts
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

OWN = GpuSpec("mine", 80e9, 60.0, 400.0, 250.0, Provenance("assumed", "me"))
PROFILE = catalogue.profiles()["llama-3.1-70b", "H100-SXM", 4]


def test_a_built_in_pair_has_power_by_load_and_says_how_sure_it_is():
    gpu = catalogue.gpu("H100-SXM")
    load = power_at_load(catalogue.model("llama-3.1-70b"), gpu, PROFILE)
    assert load is not None and load.graphs[0].arrangement.tp == 4
    facts = dict(power_facts(gpu, load))
    assert "error" in facts["Power by load of H100-SXM"].source
    assert facts["Server power, excluding GPUs (H100-SXM)"].kind == "published"
    assert "275 W" in facts["Server power, excluding GPUs (H100-SXM)"].source


def test_half_the_bytes_are_eight_bits():
    gpu = catalogue.gpu("H100-SXM")
    load = power_at_load(catalogue.model("llama-3.1-70b", weights="fp8"), gpu, PROFILE)
    assert load is not None and load.graphs[0].arrangement.weights == "fp8"


def test_what_a_scenario_describes_itself_keeps_its_constants():
    gpu, model = catalogue.gpu("H100-SXM"), catalogue.model("llama-3.1-70b")
    bare = ModelSpec("m", 1e9, 1e5, 4096, Provenance("assumed", "me"))
    assert power_at_load(bare, gpu, PROFILE) is None
    assert power_at_load(model, OWN, PROFILE) is None
    assert host_of(OWN) == (0.0, None) and power_facts(OWN, None) == []
