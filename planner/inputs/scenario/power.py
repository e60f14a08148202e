"""Find the power of a scenario's pools by load, and of the hosts around the GPUs."""

from __future__ import annotations

from planner.inputs.catalogue.power import host_watts, power_model
from simulation.errors import SimulationError
from simulation.performance.attention_ffn import AttentionFfnProfile
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.graph import operator_graph
from simulation.performance.power import Power, PowerAtLoad, PowerModel, PowerOfSides
from simulation.performance.profile import Profile
from simulation.performance.specs import Arrangement, GpuSpec, ModelSpec, Provenance


def power_at_load(model: ModelSpec, gpu: GpuSpec, profile: Profile) -> Power | None:
    """Return the power by load; None if the model's shape or the GPU's peaks are unknown.

    The caller then uses the constant power of the GPU type.
    """
    if model.shape is None or not (gpu.tdp_w and gpu.bandwidth_bytes_s and gpu.peak_flops):
        return None
    if isinstance(profile, AttentionFfnProfile):
        split, sides = profile.split, (profile.attention, profile.ffn)
        shares = (split.attention / split.gpus, split.ffn / split.gpus)
        parts = (PowerAtLoad(power_model(gpu), gpu, graph) for graph in sides)
        return PowerOfSides(tuple(zip(shares, parts, strict=True)))
    if isinstance(profile, GraphProfile):  # its graph has the arrangement and the precision
        return PowerAtLoad(power_model(gpu), gpu, profile.graph)
    try:
        # A linear profile states no precision. Infer it from the size of the weights.
        sixteen_bits = operator_graph(model.shape, Arrangement(tp=profile.tp))
        weight_bytes = sixteen_bits.weight_bytes * profile.tp
        weights = "bf16" if model.weight_bytes > 0.75 * weight_bytes else "fp8"
        graph = operator_graph(model.shape, Arrangement(tp=profile.tp, weights=weights))
    except SimulationError:  # an arrangement the operator graph does not describe
        return None
    return PowerAtLoad(power_model(gpu), gpu, graph)


def host_of(gpu: GpuSpec) -> tuple[float, Provenance | None]:
    """Return the server's watts per GPU, and their source.

    They are 0 for a GPU type that the scenario describes without a TDP.
    """
    return host_watts(gpu) if gpu.tdp_w else (0.0, None)


def power_facts(gpu: GpuSpec, load: Power | None) -> list[tuple[str, Provenance]]:
    """Return the sources of a GPU type's watts, for the list of sources in a result."""
    watts, host = host_of(gpu)
    facts = []
    if load is not None:
        facts.append((f"Power by load of {gpu.name}", _power_source(load.model)))
    if host is not None:
        what = f"Server power beside {gpu.name}"
        facts.append((what, Provenance(host.kind, f"{watts:.0f} W per GPU: {host.source}")))
    return facts


def _power_source(model: PowerModel) -> Provenance:
    """Return the source of a power model, with its measured errors."""
    errors = "; ".join(
        f"error {check.mape:.0%} on {check.rows} rows ({check.against})" for check in model.checks
    )
    source = model.provenance.source
    return Provenance(model.provenance.kind, f"{source}; {errors}" if errors else source)
