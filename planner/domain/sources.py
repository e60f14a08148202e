"""State the sources of a result's figures."""

from collections.abc import Iterable
from dataclasses import dataclass

from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class Fact:
    """The source of one figure."""

    what: str
    kind: str  # measured, published, modelled or assumed
    source: str


def facts_of(known: Iterable[tuple[str, Provenance]]) -> tuple[Fact, ...]:
    """Return a fact for each pair of a figure's name and its provenance."""
    return tuple(Fact(what, source.kind, source.source) for what, source in known)
