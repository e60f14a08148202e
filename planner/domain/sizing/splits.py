"""Compare the ways to divide the GPUs of a replica between attention and experts (methods.md D6).

A division (split) has some GPUs for attention, and the others for the experts (FFN).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from planner.domain.progress import Progress
from planner.domain.sizing.closed_form import pool_shape
from planner.domain.sizing.curves import sized_alone, workload_of
from planner.domain.sizing.sizing import At, Sizes
from planner.domain.traffic.lengths import Lengths
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.schema.hardware import AttentionFfn
from planner.inputs.scenario.speeds import split_speed
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.profile import Profile
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.pd_slo_split import role_tier
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness, Workload

MAX_SPLITS = 31  # divisions compared per replica, in addition to the scenario's own


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSize:
    """One way to divide a replica's GPUs between attention and experts.

    ``predicted_rps`` is by closed forms. ``max_rps`` is by simulation, only for the scenario's own
    and the best division. ``note`` says why a division has no capacity.
    """

    model: str
    gpu: str
    role: str
    gpus: int
    attention: int  # GPUs for attention
    ffn: int  # GPUs for the experts
    predicted_rps: float | None = None
    max_rps: float | None = None
    bound_by: str = ""
    kv_capacity_tokens: int | None = None
    stated: bool  # the scenario's own division
    best: bool = False
    note: str = ""


def splits_of(
    hardware: Hardware,
    sizes: Sizes,
    requests: Sequence[tuple[Lengths, SharedPrompts | None]],
    scv: Sequence[float],
    arrivals: Sequence[Burstiness],
    seed: int,
    progress: Progress,
) -> tuple[SplitSize, ...]:
    """Return the possible divisions of GPUs between attention and experts, with their capacity.

    Only profiles that state such a division are divided otherwise, with the same number of GPUs.
    Arguments by model: ``requests`` (lengths, cached prompts), ``arrivals`` for simulations, and
    ``scv``, the squared coefficient of variation of the gaps, for closed forms.
    """
    divided = [at for at in sizes.capacity if hardware.sections[at].attention_ffn is not None]
    splits: list[SplitSize] = []
    for done, at in enumerate(divided):
        progress(done / len(divided), "Dividing GPUs between attention and experts")
        m, _ = at
        tier, alone = sizes.capacity[at]
        lengths, shared = requests[m]
        work = workload_of(hardware, m, lengths, shared, scv[m])
        splits_and_profiles = _splits_with_sizes(hardware, at, hardware.tier(tier), work)
        highest_rps = max((row.predicted_rps or 0.0 for row, _ in splits_and_profiles), default=0.0)
        for row, profile in splits_and_profiles:
            row = replace(row, best=row.predicted_rps == highest_rps > 0)
            # Simulate only the best division. That of the profile itself was simulated before.
            if row.stated:
                row = replace(row, max_rps=alone.max_rps)
            elif row.best and profile is not None:
                with suppress(SimulationError):  # bursts too large for one replica
                    max_rps = sized_alone(
                        hardware, at, lengths, seed, profile=profile,
                        burstiness=arrivals[m], shared=shared,
                    )  # fmt: skip
                    row = replace(row, max_rps=max_rps)
            splits.append(row)
    return tuple(splits)


def _splits_with_sizes(
    hardware: Hardware, at: At, tier: Tier, work: Workload
) -> list[tuple[SplitSize, Profile | None]]:
    """Return (split, profile) for each division of a profile's GPUs, sized by closed forms.

    The profile is that of a replica with this division; None: the division has no capacity.
    """
    section, (m, g) = hardware.sections[at], at
    model, gpu, stated = hardware.models[m], hardware.gpus[g], section.attention_ffn
    assert stated is not None
    pool = pool_shape(hardware, m, g)
    # The limits of the role: TTFT for prefill, else TPOT.
    limit = replace(role_tier(tier, pool.role), e2e_s=None)
    limit = replace(limit, tbt_s=None) if pool.role == "prefill" else replace(limit, ttft_s=None)
    rows: list[tuple[SplitSize, Profile | None]] = []
    for attention in _attention_gpus(stated, section.tp):
        ffn = stated.attention + stated.ffn - attention
        row = SplitSize(
            model=model.name,
            gpu=gpu.name,
            role=hardware.role(g),
            gpus=attention + ffn,
            attention=attention,
            ffn=ffn,
            stated=attention == stated.attention,
        )
        divided = stated.model_copy(update={"attention": attention, "ffn": ffn})
        try:
            profile = split_speed(section, divided, model, gpu)
            sized = size_pool(profile, work, limit, pool)
        except (ScenarioError, SimulationError) as problem:
            # No capacity, with the reason as a note.
            rows.append((replace(row, note=str(problem).removeprefix("profiles: ")), None))
            continue
        row = replace(row, predicted_rps=sized.max_rps, bound_by=sized.bound_by)
        rows.append((replace(row, kv_capacity_tokens=profile.kv_capacity_tokens), profile))
    return rows


def _attention_gpus(stated: AttentionFfn, tp: int) -> list[int]:
    """Return the numbers of GPUs for attention to try: multiples of ``tp``, and the stated one.

    Of more than ``MAX_SPLITS`` multiples, take equally spaced ones.
    """
    choices = list(range(tp, stated.attention + stated.ffn, tp))
    every = math.ceil(len(choices) / MAX_SPLITS)
    return sorted({*choices[::every], stated.attention})
