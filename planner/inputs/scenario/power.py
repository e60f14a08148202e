"""Find the power of a scenario's pools by load, and of the hosts around the GPUs."""

from collections.abc import Sequence

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.catalogue.power import cap_curves, host_watts, power_model
from planner.inputs.catalogue.serving import typical_context
from planner.inputs.scenario.schema import SweepRow
from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import AdjustedProfile, adjust_profile
from simulation.performance.attention_ffn import AttentionFfnProfile
from simulation.performance.curves import scale_curve
from simulation.performance.graph import operator_graph
from simulation.performance.power import (
    CapCurve,
    PowerAtLoad,
    PowerCap,
    cap_power,
)
from simulation.performance.profile import Profile, iteration_s
from simulation.performance.specs import Arrangement, GpuSpec, ModelSpec, Provenance


def power_at_load(model: ModelSpec, gpu: GpuSpec, profile: Profile) -> PowerAtLoad | None:
    """Return the power of a replica by load; None without the model's shape or the GPU's peaks.

    The caller then uses the constant power of the GPU type.
    """
    if model.shape is None or not (gpu.tdp_w and gpu.bandwidth_bytes_s and gpu.peak_flops):
        return None
    if isinstance(profile, AttentionFfnProfile):
        split, graphs = profile.split, (profile.attention, profile.ffn)
        shares = (split.attention / split.gpus, split.ffn / split.gpus)
        return PowerAtLoad(power_model(gpu), gpu, graphs, shares)
    cap = getattr(profile, "cap", None)
    watts = power_model(gpu) if cap is None else cap_power(power_model(gpu), cap)
    graph = getattr(profile, "graph", None)
    if graph is not None:  # it has the arrangement and the precision
        return PowerAtLoad(watts, gpu, (graph,))
    try:
        # A linear profile states no precision. Infer it from the size of the weights.
        sixteen_bits = operator_graph(model.shape, Arrangement(tp=profile.tp))
        weight_bytes = sixteen_bits.weight_bytes * profile.tp
        weights = "bf16" if model.weight_bytes > 0.75 * weight_bytes else "fp8"
        graph = operator_graph(model.shape, Arrangement(tp=profile.tp, weights=weights))
    except SimulationError:  # an arrangement the operator graph does not describe
        return None
    return PowerAtLoad(watts, gpu, (graph,))


def under_cap(
    profile: Profile, model: ModelSpec, gpu: GpuSpec, share: float, sweep: Sequence[SweepRow]
) -> AdjustedProfile:
    """Return ``profile`` under a power cap of ``share`` of the TDP.

    Speeds follow the user's ``sweep``, or else the published curves. Published curves are read at
    the power that each phase draws without a cap: the most that prompts may draw, and what decodes
    draw in a full batch. Raises ScenarioError if the power is not known, or if the cap is below the
    curve.
    """
    power = power_at_load(model, gpu, profile)
    if power is None or len(power.graphs) > 1 or gpu.tdp_w is None:
        raise ScenarioError(
            f"profiles: a power cap of {profile.model} on {profile.gpu} needs its TDP, bandwidth "
            "and bf16 peak, the model's shape, and no attention_ffn. Leave the cap out."
        )
    try:
        # Shares of the TDP that prompts and decodes draw without a cap. A curve is read at the cap
        # over that share. A user's sweep has the cap itself.
        prefill_share = decode_share = 1.0
        if sweep:
            rows = sorted((row.cap, row.prefill, row.decode) for row in sweep)
            caps, prefill_speeds, decode_speeds = np.array(rows).T
            measured = Provenance("measured", "power sweep of the scenario")
            prefill = CapCurve(caps, prefill_speeds, measured)
            decode = CapCurve(caps, decode_speeds, measured)
        else:
            prefill, decode = cap_curves()
            prefill_share = power.model.prefill
            # Decodes of a full batch: as many sequences of a typical length as fit.
            context = typical_context(model.max_context)
            batch = max(1.0, min(profile.max_batch, profile.kv_capacity_tokens / context))
            seconds = iteration_s(profile, batch, batch * context, 0.0, 0.0)
            decode_share = float(power.watts(seconds, batch, batch * context)) / gpu.tdp_w
        prefill_speed = prefill.speed_at(share / prefill_share)
        decode_speed = decode.speed_at(share / decode_share)
    except SimulationError as error:
        words = f"profiles: power cap {share:g} of {profile.model} on {profile.gpu}: {error}"
        raise ScenarioError(words) from None
    source = (
        f"{profile.provenance.source}; under a power cap of {share:.0%} of TDP: prefill at "
        f"{prefill_speed:.1%} and decode at {decode_speed:.1%} of its speed "
        f"({prefill.provenance.source}; {decode.provenance.source})"
    )
    return adjust_profile(
        profile,
        curve=scale_curve(profile.curve, 1 / prefill_speed, 1 / decode_speed),
        cap=PowerCap(share, prefill_speed, clock_at(share, sweep)),
        provenance=Provenance("modelled", source),
    )


def clock_at(share: float, sweep: Sequence[SweepRow]) -> float | None:
    """Return the clock (MHz) that draws ``share`` of TDP in a sweep; None without clocks."""
    rows = sorted((row.cap, row.clock_mhz) for row in sweep if row.clock_mhz is not None)
    if not rows:
        return None
    caps, clocks_mhz = zip(*rows, strict=True)
    return float(np.interp(share, caps, clocks_mhz))


def host_of(gpu: GpuSpec) -> tuple[float, Provenance | None]:
    """Return a server's watts per GPU without the GPU, and their source; 0, None if unknown."""
    return host_watts(gpu) if gpu.tdp_w else (0.0, None)


def power_facts(gpu: GpuSpec, load: PowerAtLoad | None) -> list[tuple[str, Provenance]]:
    """Return (fact, source) of a GPU type's power; ``load`` is None if it is not known."""
    host_w, host_source = host_of(gpu)
    facts = []
    if load is not None:
        model = load.model.provenance
        errors = "; ".join(
            f"error {check.mape:.0%} on {check.rows} rows ({check.against})"
            for check in load.model.checks
        )
        source = f"{model.source}; {errors}" if errors else model.source
        facts.append((f"Power by load of {gpu.name}", Provenance(model.kind, source)))
    if host_source is not None:
        source = f"{host_w:.0f} W per GPU: {host_source.source}"
        fact = f"Server power, excluding GPUs ({gpu.name})"
        facts.append((fact, Provenance(host_source.kind, source)))
    return facts
