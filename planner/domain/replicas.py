"""Describe a replica for the tables of results."""

from dataclasses import dataclass

from planner.inputs.scenario.build import Hardware

REPLICA = ("gpu", "tp", "role", "market", "arrangement")  # columns of tables, after the model


@dataclass(frozen=True, slots=True)
class Replica:
    """One way to run a model: its GPUs, role and market. ``arrangement`` has the GPUs in words."""

    model: str
    gpu: str
    tp: int
    role: str  # mixed, prefill or decode
    market: str  # owned or spot
    arrangement: str


def replica_of(hardware: Hardware, m: int, g: int) -> Replica:
    """Return the replica of model number ``m`` on GPU column number ``g``."""
    return Replica(
        model=hardware.models[m].name,
        gpu=hardware.gpus[g].name,
        tp=hardware.profiles[m, g].tp,
        role=hardware.role(g),
        market=hardware.market(g),
        arrangement=hardware.arrangement(m, g),
    )
