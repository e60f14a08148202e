"""Look up power by load of a GPU type, and the power of the server around it."""

from typing import Any

import numpy as np

from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.hardware import gpu_known_as
from simulation.performance.power import CapCurve, PowerModel
from simulation.performance.profile import Check
from simulation.performance.specs import GpuSpec, Provenance

# Types with parameters of a sibling: the same chip with another memory or board, or its forerunner.
SIBLINGS = {
    "H100-SXM": ("H800", "H100-PCIe", "H100-NVL", "H200", "H200-NVL", "GH200"),
    "B200": ("GB200", "B300", "GB300"),
    "A100-80GB": ("A100-40GB", "A100-80GB-PCIe", "A100-40GB-PCIe"),
    "MI355X": ("MI300X", "MI325X", "MI350X"),
}


def power_model(gpu: GpuSpec) -> PowerModel:
    """Return the power model fitted to a GPU type, else to a similar type, else the mean of all."""
    document = read("power")
    shared = {key: value for key, value in document["shared"].items() if isinstance(value, float)}
    name = gpu_known_as(gpu.name)
    for entry in document["gpus"]:
        if name == entry["gpu"]:
            return _model(entry, shared, entry["source"])
        if name in SIBLINGS[entry["gpu"]]:
            return _model(entry, shared, f"as {entry['gpu']}, shares of TDP: {entry['source']}")
    return _model(document["default"], shared, document["default"]["source"])


def cap_curves() -> tuple[CapCurve, CapCurve]:
    """Return the published speed of prefill and of decode under a power cap."""
    document = read("power_cap")
    curves = []
    for phase in ("prefill", "decode"):
        cap, speed = np.array(document[phase]["points"], np.float64).T
        source = Provenance(document["kind"], document[phase]["source"])
        curves.append(CapCurve(cap, speed, source))
    return curves[0], curves[1]


def host_watts(gpu: GpuSpec) -> tuple[float, Provenance]:
    """Return the server's watts per GPU, excluding the GPU boards, and their source."""
    hosts = read("power")["hosts"]
    name = gpu_known_as(gpu.name)
    if name in hosts["gpus"]:
        return hosts["gpus"][name], Provenance(hosts["kind"], hosts["source"])
    share = hosts["share_of_tdp"]
    source = f"{share:.0%} of TDP: {hosts['share_source']} ({hosts['source']})"
    return share * (gpu.tdp_w or 0.0), Provenance("assumed", source)


def _model(entry: dict[str, Any], shared: dict[str, float], source: str) -> PowerModel:
    """Return the power model in an ``entry`` of power.yaml; ``shared`` are parameters of all."""
    parameters = {key: value for key, value in entry.items() if isinstance(value, float)}
    check = Check(quantity="power", **entry["check"])
    return PowerModel(
        **parameters, **shared, provenance=Provenance(entry["kind"], source), checks=(check,)
    )
