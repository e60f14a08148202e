"""Describe the sources of a result's figures."""

from collections.abc import Iterable
from dataclasses import dataclass

from simulation.performance.curves import LINEAR, MOST_CONTEXT, MOST_DECODES, NO_LIMIT, Curve
from simulation.performance.profile import Profile
from simulation.performance.specs import Provenance

BEYOND = 0.01  # share of iterations outside the measured range from which it is reported


@dataclass(frozen=True, slots=True)
class Fact:
    """The source of one figure."""

    what: str
    kind: str  # measured, published, modelled or assumed
    source: str


def facts_of(known: Iterable[tuple[str, Provenance]]) -> tuple[Fact, ...]:
    """Return a fact for each pair of a figure's name and its provenance."""
    return tuple(Fact(what, source.kind, source.source) for what, source in known)


def provenance_at(profile: Profile, outside: float) -> Provenance:
    """Return the provenance of a result by ``profile`` at a load.

    ``outside`` is the share of iterations at that load beyond the measured range. From ``BEYOND``
    on, a measured profile counts as modelled, since these iterations are extrapolated.
    """
    provenance = profile.provenance
    if provenance.kind != "measured" or outside < BEYOND:
        return provenance
    return Provenance(
        "modelled",
        f"{outside:.0%} of iterations at this load are beyond the measured range"
        f"{_measured_range_words(profile.curve)}, and extrapolated; {provenance.source}",
    )


def _measured_range_words(curve: Curve) -> str:
    """Return the largest measured sizes of a LINEAR speed curve in words, in brackets.

    Return "" for a GRID curve, which has limits for each point of its grid.
    """
    if curve.kind != LINEAR:
        return ""
    units = ("sequences", "prompt tokens an iteration", "of context")
    limits = zip(units, curve.values[MOST_DECODES : MOST_CONTEXT + 1].tolist(), strict=True)
    ranges = [f"{limit:,.0f} {unit}" for unit, limit in limits if limit < NO_LIMIT]
    return f" (up to {', '.join(ranges)})" if ranges else ""
