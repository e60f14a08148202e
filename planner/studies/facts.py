"""State the sources of a result's figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class Fact:
    what: str
    kind: str  # measured, published, modelled or assumed
    source: str


def facts_of(known: Iterable[tuple[str, Provenance]]) -> tuple[Fact, ...]:
    return tuple(Fact(what, source.kind, source.source) for what, source in known)
