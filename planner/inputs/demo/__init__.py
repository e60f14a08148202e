"""The demo: a synthetic week of a synthetic fleet, drawn from published statistics. No Django."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from simulation.arrays import FloatArray, IntArray

BIN_S = 300
DAYS = 7
MONDAY_S = 1_715_558_400  # 2024-05-13 00:00 UTC
START_S = MONDAY_S + 2 * 86_400  # a Wednesday, so that the planned last day is a Tuesday
SEED = 20_240_513
REGIONS = {"us-east": 0.6, "us-west": 0.4}
STEADY = "batch"
LENGTH_CV = 1.0  # coefficient of variation of tokens per request
NOISE, MEMORY = 0.08, 0.8  # deviation and autocorrelation of the rate's random drift


@dataclass(frozen=True, slots=True)
class Service:
    """A service: mean requests/s, tokens per request, and the shape of its rate by UTC hour."""

    model: str
    mean_rps: float
    input_tokens: float
    output_tokens: float
    weekday: tuple[float, ...]  # 24 values relative to the weekly mean
    weekend: tuple[float, ...]
    tiers: Mapping[str, float]  # shares of the requests


CODE_WEEKDAY = (0.87, 0.84, 0.79, 0.64, 0.51, 0.42, 0.36, 0.31, 0.28, 0.29, 0.31, 0.46,
                0.85, 1.46, 2.08, 2.28, 2.16, 2.46, 2.72, 2.78, 2.61, 1.90, 1.38, 1.03)  # fmt: skip
CODE_WEEKEND = (0.54, 0.52, 0.47, 0.45, 0.39, 0.31, 0.25, 0.17, 0.13, 0.12, 0.11, 0.15,
                0.23, 0.31, 0.39, 0.45, 0.48, 0.53, 0.58, 0.60, 0.59, 0.60, 0.59, 0.55)  # fmt: skip
CONV_WEEKDAY = (1.02, 1.10, 1.10, 0.90, 0.91, 0.99, 1.15, 1.23, 1.27, 1.23, 1.12, 1.17,
                1.30, 1.45, 1.53, 1.43, 1.30, 1.23, 1.24, 1.16, 1.06, 0.88, 0.79, 0.82)  # fmt: skip
CONV_WEEKEND = (0.57, 0.61, 0.60, 0.52, 0.49, 0.51, 0.53, 0.60, 0.61, 0.56, 0.59, 0.66,
                0.71, 0.79, 0.80, 0.82, 0.78, 0.77, 0.72, 0.68, 0.70, 0.66, 0.60, 0.66)  # fmt: skip


# Prompts are long. So a replica serves few requests, and a fleet of tens is simulated fast.
SERVICES = (
    Service(
        "mistral-large-123b", 1.4, 8596.0, 182.0, CODE_WEEKDAY, CODE_WEEKEND,
        {"agent": 0.72, STEADY: 0.28},
    ),
    Service(
        "llama-3.1-70b", 2.0, 12035.0, 343.0, CONV_WEEKDAY, CONV_WEEKEND,
        {"interactive": 0.72, STEADY: 0.28},
    ),
)  # fmt: skip


def demand_week(services: tuple[Service, ...]) -> pl.DataFrame:
    """Return the demand of services: one row per bin, model, region and tier, in order of time.

    Counts are Poisson. Their mean follows the service's rate by hour, times a factor that drifts
    slowly. The tokens of a bin have the Gamma distribution of the sum over its requests.
    """
    rng = np.random.default_rng(SEED)
    bins = DAYS * 86_400 // BIN_S
    frames = []
    for service in services:
        shape = _shape(service, bins)
        for region, region_share in REGIONS.items():
            drift = _drift(bins, rng)
            for tier, tier_share in service.tiers.items():
                relative_rate = np.ones(bins) if tier == STEADY else shape * drift
                mean = service.mean_rps * region_share * tier_share * BIN_S * relative_rate
                requests = rng.poisson(mean)
                columns = {
                    "time": START_S + np.arange(bins) * BIN_S,
                    "model": service.model,
                    "region": region,
                    "tier": tier,
                    "requests": requests,
                    "input_tokens": _tokens(requests, service.input_tokens, rng),
                    "output_tokens": _tokens(requests, service.output_tokens, rng),
                }
                frames.append(pl.DataFrame(columns))
    moment = pl.from_epoch("time").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    return pl.concat(frames).sort("time", maintain_order=True).with_columns(time=moment)


def _shape(service: Service, bins: int) -> FloatArray:
    """Return a service's rate over its mean, ``[bins]``, interpolated between middles of hours."""
    hour = (START_S - MONDAY_S + np.arange(bins) * BIN_S + BIN_S / 2) / 3600  # since Monday
    values = np.concatenate([service.weekday * 5, service.weekend * 2])
    shape = np.interp(hour, np.arange(len(values)) + 0.5, values, period=len(values))
    return np.asarray(shape / shape.mean(), np.float64)


def _drift(bins: int, rng: np.random.Generator) -> FloatArray:
    """Draw the rate's drift ``[bins]``, mean 1: its logarithm is a first-order autoregression."""
    steps = rng.normal(0.0, NOISE * np.sqrt(1 - MEMORY**2), bins)
    level = np.empty(bins)
    log_level = rng.normal(0.0, NOISE)
    for i, step in enumerate(steps):
        log_level = MEMORY * log_level + step
        level[i] = log_level
    return np.asarray(np.exp(level - NOISE**2 / 2), np.float64)


def _tokens(requests: IntArray, mean: float, rng: np.random.Generator) -> IntArray:
    """Draw the tokens of each bin, at least one per request, with ``mean`` and LENGTH_CV."""
    drawn = rng.gamma(np.maximum(requests, 1e-9) / LENGTH_CV**2, mean * LENGTH_CV**2)
    return np.maximum(np.round(drawn), requests).astype(np.int64)


DEMO_NAME = "Demo: two models, two regions"
DEMO_SCENARIO = (Path(__file__).parent / "scenario.yaml").read_text(encoding="utf-8")


def demo_scenario(trace: str) -> str:
    """Return the demo's scenario for the stored trace of that name."""
    return DEMO_SCENARIO.replace("TRACE", trace)
