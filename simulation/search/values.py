"""Define the inputs and results of the search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simulation.fleet import KvLink, Tier
from simulation.performance.profile import Profile
from simulation.performance.specs import Arrangement, GpuSpec
from simulation.sizing.pd_slo_split import role_tier
from simulation.sizing.workload import Workload

Judged = Literal["simulation", "closed forms", "screen"]
Mode = Literal["any", "agg", "disagg"]  # use of an instance: aggregated, disaggregated, or both


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of ``isl`` input and ``osl`` output tokens each, within the limits of ``tier``."""

    isl: int
    osl: int
    tier: Tier
    rps: float | None = None  # rate that all instances together must sustain

    def part(self, role: str) -> Requests:
        """Return the requests with the part of the limits that a role of a pair must keep."""
        return replace(self, tier=role_tier(self.tier, role))

    @property
    def workload(self) -> Workload:
        return Workload(np.array([self.isl], np.int32), np.array([self.osl], np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One instance on one GPU type; engines of equal speed share one."""

    gpu: GpuSpec
    where: Arrangement
    engines: tuple[str, ...]
    profile: Profile
    usd_per_gpu_hour: float  # nan: no price known
    link: KvLink | None  # for KV caches, if known
    mode: Mode = "any"  # measured in one mode only, if its speed differs in the other

    @property
    def gpus(self) -> int:
        return self.where.gpus


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An aggregated instance, or a pair with ``prefills`` and ``decodes`` instances."""

    decode: Instance
    prefill: Instance | None = None
    prefills: int = 0
    decodes: int = 1

    @property
    def gpus(self) -> int:
        prefill_gpus = self.prefill.gpus * self.prefills if self.prefill else 0
        return prefill_gpus + self.decode.gpus * self.decodes

    @property
    def usd_per_hour(self) -> float:
        """Return the price of all GPUs per hour; nan if no price is known."""
        before = self.prefill
        first = before.gpus * self.prefills * before.usd_per_gpu_hour if before else 0.0
        return first + self.decode.gpus * self.decodes * self.decode.usd_per_gpu_hour


@dataclass(frozen=True, slots=True, eq=False)
class RatedCandidate:
    """A candidate with its latencies at a rate within the limits, mostly the largest.

    Latencies are quantiles at the tier's attainment.
    """

    candidate: Candidate
    rate: float  # requests/s of all its instances
    ttft_s: float
    tbt_s: float
    bound_by: str  # ttft, tbt, e2e, memory, link or throughput; "" if only screened
    judged: Judged

    @property
    def rps_per_gpu(self) -> float:
        return self.rate / self.candidate.gpus

    def usd_per_mtok(self, tokens: float) -> float:
        """Return the dollars per million tokens; nan without a price.

        ``tokens`` is the number of input and output tokens per request.
        """
        return self.candidate.usd_per_hour / (self.rate * tokens * 3600.0 / 1e6)
