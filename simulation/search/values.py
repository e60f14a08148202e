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
    """Requests of equal lengths that a deployment must serve within the limits of ``tier``."""

    isl: int  # input tokens of each
    osl: int  # output tokens of each
    tier: Tier
    rps: float | None = None  # rate that all instances together must sustain

    def for_role(self, role: str) -> Requests:
        """Return the requests with the tier that one role of a prefill-decode pair must meet."""
        return replace(self, tier=role_tier(self.tier, role))

    @property
    def workload(self) -> Workload:
        """Return the requests as a sample of one length."""
        return Workload(np.array([self.isl], np.int32), np.array([self.osl], np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An instance of the model in one arrangement on one GPU type."""

    gpu: GpuSpec
    where: Arrangement  # how the model is divided among GPUs
    engines: tuple[str, ...]  # engines that run it at this speed
    profile: Profile
    usd_per_gpu_hour: float  # nan: no price known
    link: KvLink | None  # for KV caches, if known
    mode: Mode = "any"  # the only mode that its profile is valid for

    @property
    def gpus(self) -> int:
        """Return the GPUs of the instance."""
        return self.where.gpus


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A deployment: an aggregated instance, or a pair of prefill and decode instances."""

    decode: Instance  # the decode instance of a pair, or the aggregated instance
    prefill: Instance | None = None
    prefills: int = 0  # number of prefill instances
    decodes: int = 1  # number of decode or aggregated instances

    @property
    def gpus(self) -> int:
        """Return the GPUs of all instances."""
        prefill_gpus = self.prefill.gpus * self.prefills if self.prefill else 0
        return prefill_gpus + self.decode.gpus * self.decodes

    @property
    def usd_per_hour(self) -> float:
        """Return the price of all GPUs per hour; nan if no price is known."""
        prefill = self.prefill
        prefill_usd = prefill.gpus * self.prefills * prefill.usd_per_gpu_hour if prefill else 0.0
        return prefill_usd + self.decode.gpus * self.decodes * self.decode.usd_per_gpu_hour


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
        """Return the requests/s per GPU."""
        return self.rate / self.candidate.gpus

    def usd_per_mtok(self, tokens: float) -> float:
        """Return the dollars per million tokens; nan without a price.

        ``tokens`` is the number of input and output tokens per request.
        """
        return self.candidate.usd_per_hour / (self.rate * tokens * 3600.0 / 1e6)
