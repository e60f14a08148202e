"""Find the profiles of a scenario: built-in, stored, stated in full, or estimated by a roofline."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.errors import ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.catalogue.hardware import gpu_known_as, model_known_as
from planner.inputs.catalogue.measured_profiles import COEFFICIENTS, contradictions
from planner.inputs.catalogue.serving import (
    MAX_BATCH,
    MAX_BATCH_TOKENS,
    serving_limits,
    typical_context,
)
from planner.inputs.scenario.measured_corrections import deployment_of, engine_of, measured_speed
from planner.inputs.scenario.power import clock_at, power_at_load, power_facts, under_cap
from planner.inputs.scenario.schema import Profile, Scenario, SweepRow
from planner.inputs.scenario.schema.hardware import AttentionFfn
from planner.inputs.scenario.user_facts import UserFacts
from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.attention_ffn import AttentionFfn as Split
from simulation.performance.attention_ffn import attention_ffn_profile, kv_tokens
from simulation.performance.linear import LinearProfile
from simulation.performance.memory import capacity_tokens, kv_capacity_tokens
from simulation.performance.power import PowerCap
from simulation.performance.profile import Profile as Speed
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import (
    WIDTHS,
    Adapters,
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelSpec,
    Provenance,
)


def speeds_of(
    scenario: Scenario,
    sections: Sequence[Profile],
    models: Sequence[ModelSpec],
    gpus: Mapping[str, GpuSpec],
    user_facts: UserFacts,
    facts: list[tuple[str, Provenance]],
) -> list[Speed]:
    """Return the speed profile of each section; add the sources of speed and power to ``facts``."""
    model_of_name = {model.name: model for model in models}
    sweeps = {gpu.name: gpu.power_sweep for gpu in scenario.gpus}
    speeds = []
    for section in sections:
        model, gpu = model_of_name[section.model], gpus[section.gpu]
        speed = speed_of(section, model, gpu, user_facts, sweeps.get(gpu.name, ()))
        speeds.append(speed)
        fact = (f"Speed of {section.model} on {speed.tp} x {section.gpu}", speed.provenance)
        for known in (fact, *power_facts(gpu, power_at_load(model, gpu, speed))):
            if known not in facts:
                facts.append(known)
    return speeds


def speed_of(
    section: Profile,
    model: ModelSpec,
    gpu: GpuSpec,
    user_facts: UserFacts,
    sweep: Sequence[SweepRow] = (),
) -> Speed:
    """Return the speed profile of ``section``, a row of the scenario's ``profiles``.

    ``user_facts`` has the user's stored profiles and measurements. A power cap slows the speeds
    that were not measured under it. ``sweep`` are the user's speeds of the GPU type by power cap;
    if it is empty, published curves apply.

    Raises ScenarioError if there is no such profile, or if it cannot be estimated.
    """
    if section.kind == "roofline":
        speed = _roofline(section, model, gpu, user_facts)
    elif section.name is not None:
        speed = _stored_profile(section, user_facts)
    elif section.in_full:
        speed = _stated_profile(section, model, gpu)
    else:
        speed = _built_in(section)
    if section.power_cap is None:
        return speed
    # A stored profile, or one stated in full, was measured under the cap.
    if section.kind == "linear" and (section.name is not None or section.in_full):
        clock_mhz = clock_at(section.power_cap, sweep)
        return adjust_profile(speed, cap=PowerCap(section.power_cap, 1.0, clock_mhz))
    return under_cap(speed, model, gpu, section.power_cap, sweep)


def _built_in(section: Profile) -> Speed:
    """Return the catalogue's profile of a section, or raise ScenarioError with those of its model.

    Measurements that contradict the profile are added to its source.
    """
    built_in = catalogue.profiles()
    key = model_known_as(section.model), gpu_known_as(section.gpu), section.tp
    profile = built_in.get(key)
    if profile is None or section.precision != "bf16" or section.kv_precision != "bf16":
        model, _, _ = key
        others = ", ".join(f"{m} on {tp} x {gpu}" for m, gpu, tp in sorted(built_in) if m == model)
        in_precision = "" if section.precision == "bf16" else f" in {section.precision}"
        raise ScenarioError(
            f"profiles: there is no built-in profile of {section.model}{in_precision} on "
            f"{section.tp} x {section.gpu}. Give alpha_ms, beta_ms, gamma_ms and delta_ms, or "
            "kind: roofline to estimate it from published specifications"
            + (f", or use {others}." if others else ".")
        )
    # Show known contradictions in the source, because the profile is used in spite of them.
    if contradiction := contradictions(built_in).get(key):
        source = f"{profile.provenance.source}; {contradiction}"
        profile = replace(profile, provenance=Provenance(profile.provenance.kind, source))
    return replace(
        profile,
        model=section.model,
        gpu=section.gpu,
        max_batch=section.max_batch or profile.max_batch,
        max_batch_tokens=section.max_batch_tokens or profile.max_batch_tokens,
    )


def _stated_profile(section: Profile, model: ModelSpec, gpu: GpuSpec) -> LinearProfile:
    """Return the linear profile with the coefficients that the section states."""
    tokens = section.max_batch_tokens or MAX_BATCH_TOKENS
    if model.shape is None or section.precision == section.kv_precision == "bf16":
        capacity = kv_capacity_tokens(model, gpu, section.tp, tokens)  # by the stated memory
    else:
        context = typical_context(model.max_context)
        capacity = capacity_tokens(model.shape, gpu, arrangement_of(section), context, tokens)
    times: dict[str, Any] = {
        f"{name}_s": (getattr(section, f"{name}_ms") or 0) / 1000 for name in COEFFICIENTS
    }
    return LinearProfile(
        model=section.model,
        gpu=section.gpu,
        tp=section.tp,
        **times,
        max_batch=section.max_batch or MAX_BATCH,
        max_batch_tokens=tokens,
        kv_capacity_tokens=capacity,
        provenance=Provenance("assumed", section.source),
    )


def arrangement_of(section: Profile) -> Arrangement:
    """Return the parallelism and the precisions of a section's replica."""
    return Arrangement(
        **{name: getattr(section, name) for name in WIDTHS},
        weights=section.precision,
        kv_cache=section.kv_precision,
    )


def _roofline(section: Profile, model: ModelSpec, gpu: GpuSpec, user_facts: UserFacts) -> Speed:
    """Return the roofline profile of a section, corrected by the user's stored measurements."""
    if model.shape is None:
        raise ScenarioError(
            f"profiles: kind: roofline needs to know what {section.model} computes. Give the model "
            "by shape or config instead of weight_gb, or a built-in one."
        )
    arrangement = arrangement_of(section)
    if section.attention_ffn is not None:
        return split_speed(section, section.attention_ffn, model, gpu)
    if model.shape.heads % arrangement.tp:  # engines refuse to start so
        raise ScenarioError(
            f"profiles: tp {arrangement.tp} does not divide the {model.shape.heads} attention "
            f"heads of {section.model}. Choose a tp that does."
        )
    adapters = None
    if section.lora_rank is not None and section.lora_active is not None:
        adapters = Adapters(section.lora_rank, section.lora_active)
    shape = replace(model.shape, name=section.model, adapters=adapters)
    engine = engine_of(section, shape, gpu, user_facts)
    try:
        limits = serving_limits(
            shape,
            gpu,
            arrangement,
            engine=engine,
            recv_interval=section.recv_interval,
            max_batch=section.max_batch,
            max_batch_tokens=section.max_batch_tokens,
        )
        computed = roofline_profile(shape, gpu, arrangement, efficiencies(engine), limits)
    except SimulationError as error:
        raise ScenarioError(f"profiles: {error}") from None
    computed = replace(computed, provenance=_with_engine(computed.provenance, engine, section))
    is_split, version = section.role != "mixed", section.engine_version
    deployed = deployment_of(
        shape, gpu, arrangement, engine, disaggregated=is_split, version=version
    )
    return measured_speed(computed, deployed, user_facts.own)


def _with_engine(provenance: Provenance, engine: str, section: Profile) -> Provenance:
    """Return ``provenance`` with the engine, and warnings on its version and LoRA adapters."""
    default = "" if section.engine else " (default)"
    source = f"{provenance.source}; {catalogue.engine_title(engine)}{default}"
    if warning := estimate_fit().later_version_warning(engine, section.engine_version):
        source += f"; {warning}"
    if section.lora_rank is not None:
        source += (
            f"; with {section.lora_active} LoRA adapters of rank {section.lora_rank} in use at "
            "once (modelled: no served deployment with adapters was measured)"
        )
    return Provenance(provenance.kind, source)


def split_speed(section: Profile, stated: AttentionFfn, model: ModelSpec, gpu: GpuSpec) -> Speed:
    """Return the profile of an instance with attention and FFN on separate GPUs.

    ``stated`` has the GPUs of both and the link between them. Raise ScenarioError if that is not
    possible.
    """
    assert model.shape is not None  # ``_roofline`` refuses a model without one
    shape = replace(model.shape, name=section.model)  # errors name the scenario's model
    split = Split(
        attention=stated.attention,
        ffn=stated.ffn,
        micro_batches=stated.micro_batches,
        bytes_s=None if stated.gb_s is None else stated.gb_s * 1e9,
        latency_s=None if stated.latency_us is None else stated.latency_us / 1e6,
    )
    arrangement = arrangement_of(section)
    tokens = section.max_batch_tokens or MAX_BATCH_TOKENS
    try:
        context = typical_context(shape.max_context)
        capacity = kv_tokens(shape, gpu, arrangement, split, context, tokens)
        engine = EngineSettings(
            section.max_batch or MAX_BATCH, tokens, capacity, estimate_fit().calibration.iteration_s
        )
        return attention_ffn_profile(shape, gpu, arrangement, split, efficiencies(), engine)
    except SimulationError as error:
        raise ScenarioError(f"profiles: {error}") from None


def _stored_profile(section: Profile, user_facts: UserFacts) -> Speed:
    """Return the stored profile that the section names.

    Raise ScenarioError if there is none, or if its model, GPU or a stated tp differ.
    """
    name = section.name or ""
    if name not in user_facts.profiles:
        raise ScenarioError(
            f"profiles: {name!r} is not a stored profile. Give model, gpu and tp of a built-in "
            "profile, or alpha_ms to delta_ms."
        )
    profile = user_facts.profiles[name]
    tp = section.tp if section.tp > 1 else profile.tp
    if (section.model, section.gpu, tp) != (profile.model, profile.gpu, profile.tp):
        raise ScenarioError(
            f"profiles: {name} is of {profile.model} on {profile.tp} x {profile.gpu}, not of "
            f"{section.model} on {tp} x {section.gpu}. Correct model, gpu and tp."
        )
    return profile
