"""The services of the table: models, GPUs with measured kernels, traces and limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.power import power_model
from simulation.arrays import FloatArray
from simulation.performance.memory import MEMORY_SHARE
from simulation.performance.roofline import OperatorTiming
from simulation.provisioning.level import Level
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.workload import (
    Phase,
    PhaseLoad,
    PhaseProblem,
    Timing,
    phase_problem,
    with_max_replicas,
)
from tools.catalogue.operator_checks import aic_kernels

DATA = Path(__file__).parents[2] / "../shared/data"
MODELS = ("qwen2-7b", "llama-3-8b", "qwen2-57b-a14b", "llama-3.1-70b")
GPUS = ("A100-80GB", "H100-SXM")
RATES = (20.0, 40.0, 80.0, 160.0)
PHASES: tuple[Phase, ...] = ("prefill", "decode")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST = 512  # replicas of one operator
SHIFT_S = 5.0
# TTFT and TBT; the source names none. Prompts of Mooncake are ten times as long.
LIMITS = {"azure": {"prefill": 1.0, "decode": 0.05}, "mooncake": {"prefill": 5.0, "decode": 0.05}}


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Arrivals (seconds from the first) and lengths of a trace."""

    arrival_s: FloatArray
    isl: FloatArray
    osl: FloatArray

    @property
    def rate(self) -> float:
        return self.arrival_s.size / float(self.arrival_s[-1])

    def at_rate(self, rate: float, seed: int = 1) -> Requests:
        """Return the requests repeated or thinned to ``rate`` over the same time.

        Copies are shifted by some seconds. Changes over minutes stay, and those within seconds are
        Poisson.
        """
        rng = np.random.default_rng(seed)
        count = round(self.arrival_s.size * rate / self.rate)
        picked = np.sort(np.resize(np.arange(self.arrival_s.size), count))
        arrival = self.arrival_s[picked] + rng.normal(0.0, SHIFT_S, count)
        arrival = np.abs(arrival)  # reflected at the start
        order = np.argsort(arrival, kind="stable")
        return Requests(arrival[order], self.isl[picked][order], self.osl[picked][order])


@cache
def trace(name: str) -> Requests:
    """Return Azure's conversations of 2023, or Mooncake's conversations."""
    if name == "azure":
        rows = pl.read_csv(DATA / "traces/azure2023_conv.csv.gz", try_parse_dates=True)
        when = rows["TIMESTAMP"].cast(pl.Datetime("us")).dt.epoch("us").to_numpy() / 1e6
        columns = ("ContextTokens", "GeneratedTokens")
    else:
        rows = pl.read_ndjson(DATA / "traces/mooncake_conversation.jsonl.gz")
        when = rows["timestamp"].to_numpy() / 1e3
        columns = ("input_length", "output_length")
    isl, osl = (rows[column].to_numpy().astype(np.float64) for column in columns)
    return Requests(when - when[0], isl, osl)


@cache
def timing_of(gpu: str, *, measured: bool = True) -> Timing:
    """Return measured kernels of the GPU if the data has them, else efficiency factors."""
    spec, factors = hardware.gpu(gpu), efficiencies()
    if measured and (DATA / "profiles/aic_gemm.parquet").exists():
        return OperatorTiming(spec, factors, aic_kernels(DATA, gpu))
    return OperatorTiming(spec, factors)


def problem(
    model: str, gpu: str, phase: Phase, rate: float, isl: float, osl: float, slo_s: float
) -> PhaseProblem:
    spec = hardware.gpu(gpu)
    return of_service(PhaseLoad(hardware.shape(model), spec, phase, rate, isl, osl, slo_s))


def of_service(service: PhaseLoad) -> PhaseProblem:
    heads = service.shape.heads
    phase = phase_problem(
        service,
        timing_of(service.gpu.name),
        batches=BATCHES,
        parallel=[p for p in (1, 2, 4, 8) if heads % p == 0],
        power=power_model(service.gpu),
    )
    return with_max_replicas(phase, MOST)


def device_bytes(gpu: str) -> float:
    return MEMORY_SHARE * hardware.gpu(gpu).memory_bytes


def levels(phase: PhaseProblem, names: tuple[str, ...] = ("operator",)) -> dict[str, Level]:
    """Return the levels of a phase, whole replicas first; empty if those miss the limit."""
    room = device_bytes(phase.service.gpu.name)
    whole_model = model_level(phase, room)
    if whole_model is None:
        return {}
    finer = {
        level: plan_level(level, phase, room, coarser=[whole_model], proofs=True) for level in names
    }
    return {
        "model": whole_model,
        **{name: level for name, level in finer.items() if level is not None},
    }
