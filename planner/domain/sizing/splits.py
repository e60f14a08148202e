"""Compare the ways to divide the GPUs of a replica between attention and experts (methods.md D6).

A division (split) has some GPUs for attention, and the others for the experts (FFN).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from planner.domain.progress import Progress
from planner.domain.sizing.closed_form import pool_shape
from planner.domain.sizing.curves import sized_alone, workload_of
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.lengths import Lengths
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.speeds import split_speed
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.profile import Profile
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.pd_slo_split import role_tier
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness, Workload

At = tuple[int, int]  # indices of model and GPU column
MOST_SPLITS = 31  # divisions compared per replica, in addition to the scenario's own


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
    divided = [
        model_column
        for model_column in sizes.capacity
        if hardware.sections[model_column].attention_ffn is not None
    ]
    splits: list[SplitSize] = []
    for done, model_column in enumerate(divided):
        progress(done / len(divided), "Dividing GPUs between attention and experts")
        m, _ = model_column
        tier = hardware.tier(sizes.capacity[model_column][0])
        lengths, shared = requests[m]
        work = workload_of(hardware, m, lengths, shared, scv[m])
        rows = list(_splits_with_sizes(hardware, model_column, tier, work))
        best_predicted = max((row.predicted_rps or 0.0 for row, _ in rows), default=0.0)
        for row, profile in rows:
            best = bool(best_predicted) and row.predicted_rps == best_predicted
            rate = row.max_rps
            if row.stated:
                rate = sizes.capacity[model_column][1].max_rps
            elif best and profile is not None:
                with suppress(SimulationError):  # bursts too large for one replica
                    rate = sized_alone(
                        hardware, model_column, lengths, seed, profile=profile,
                        burstiness=arrivals[m], shared=shared,
                    )  # fmt: skip
            splits.append(replace(row, best=best, max_rps=rate))
    return tuple(splits)


def _splits_with_sizes(
    hardware: Hardware, model_column: At, tier: Tier, work: Workload
) -> Iterator[tuple[SplitSize, Profile | None]]:
    """Yield (split, profile) for each division of a profile's GPUs, sized by closed forms.

    The profile is that of a replica with this division; None: the division has no capacity.
    """
    section, (m, g) = hardware.sections[model_column], model_column
    stated = section.attention_ffn
    assert stated is not None
    gpus, step = stated.attention + stated.ffn, section.tp
    pool = pool_shape(hardware, m, g)
    # The tier's TTFT limits prefill replicas, and its TBT limits all others.
    limit = replace(role_tier(tier, pool.role), e2e_s=None)
    limit = replace(limit, tbt_s=None) if pool.role == "prefill" else replace(limit, ttft_s=None)
    choices = list(range(step, gpus, step))
    stride = -(-len(choices) // MOST_SPLITS)
    for attention in sorted({*choices[::stride], stated.attention}):
        row = SplitSize(
            model=hardware.models[m].name,
            gpu=hardware.gpus[g].name,
            role=hardware.role(g),
            gpus=gpus,
            attention=attention,
            ffn=gpus - attention,
            stated=attention == stated.attention,
        )
        divided = stated.model_copy(update={"attention": attention, "ffn": gpus - attention})
        try:
            profile = split_speed(section, divided, hardware.models[m], hardware.gpus[g])
            sized = size_pool(profile, work, limit, pool)
        except (ScenarioError, SimulationError) as problem:
            yield replace(row, note=str(problem).removeprefix("profiles: ")), None
            continue
        yield (
            replace(
                row,
                predicted_rps=sized.max_rps,
                bound_by=sized.bound_by,
                kv_capacity_tokens=profile.kv_capacity_tokens,
            ),
            profile,
        )
