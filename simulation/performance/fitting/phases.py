"""State the basis of a profile by phase: the kind, error and range of prefill and of decode."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulation.performance.curves import LINEAR, MOST_DECODES, MOST_TOKENS, NO_LIMIT
from simulation.performance.fitting.compare import (  # fmt: skip
    PREFILL,
    SERVED_TBT,
    SERVED_TTFT,
    TBT,
    TTFT,
    stated_check,
)
from simulation.performance.profile import Check, Profile
from simulation.performance.specs import KINDS, PHASES, Phase, Provenance

DECODE_ITERATION, PREFILL_ITERATION = "decode iteration time", "prefill iteration time"
PHASE_OF = {
    PREFILL: "prefill", TTFT: "prefill", SERVED_TTFT: "prefill", PREFILL_ITERATION: "prefill",
    TBT: "decode", SERVED_TBT: "decode", DECODE_ITERATION: "decode",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhaseBasis:
    """What one phase of a profile (prefill or decode) is based on."""

    name: str  # prefill or decode
    kind: str  # measured, published, modelled or assumed
    source: str
    error: Check | None  # check that decides on this phase; null: not known
    # Largest measured iteration: prompt tokens in prefill, sequences in decode. null: none.
    most: float | None


def phases(profile: Profile) -> tuple[PhaseBasis, ...]:
    """Return the basis of prefill, and that of decode."""
    limits = (NO_LIMIT, NO_LIMIT)
    if profile.curve.kind == LINEAR:
        limits = profile.curve.values[MOST_TOKENS], profile.curve.values[MOST_DECODES]
    bases = []
    for name, phase, limit in zip(PHASES, phases_of(profile), limits, strict=True):
        provenance = phase.provenance
        checks = [check for check in profile.checks if PHASE_OF.get(check.quantity, name) == name]
        modelled = provenance.kind in KINDS[2:]
        most = phase.most if phase.most < NO_LIMIT else float(limit)
        has_measured_size = most < NO_LIMIT and not modelled
        bases.append(
            PhaseBasis(
                name,
                provenance.kind,
                provenance.source,
                stated_check(checks, profile.spread, modelled),
                most if has_measured_size else None,
            )
        )
    return tuple(bases)


def phases_of(profile: Profile) -> tuple[Phase, Phase]:
    """Return the two phases of a profile. By default, both have its provenance."""
    same = Phase(profile.provenance)
    return getattr(profile, "phases", None) or (same, same)


def together(parts: Sequence[Phase]) -> Provenance:
    """Return one provenance for prefill and decode: the less certain kind, and both sources."""
    kind = max((part.provenance.kind for part in parts), key=KINDS.index)
    prefill, decode = (part.provenance for part in parts)
    if prefill.source == decode.source:
        return Provenance(kind, decode.source)
    return Provenance(kind, f"ITL: {decode.source}. Prefill: {prefill.source}")
