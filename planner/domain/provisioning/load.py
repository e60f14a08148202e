"""Find the load of a model's peak hour and its latency limits, for a provisioning run."""

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.traffic.groups import interactive
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from planner.inputs.scenario.build import Hardware
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import HOUR_S
from simulation.provisioning.workload import Phase
from simulation.trace import CachedTokens, Trace

# If no tier limits the phase: two seconds to begin, and tokens as fast as people read.
ASSUMED_SLO_S = {"prefill": 2.0, "decode": 0.2}


@dataclass(frozen=True, slots=True)
class Peak:
    """The demand of one model in one region in the busiest hour of the window."""

    requests_s: float
    isl: float  # mean input tokens of a request
    osl: float  # mean output tokens, at least 1
    start_s: float = 0.0  # start of the hour, epoch seconds
    end_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """The latency limit on a phase (prefill or decode)."""

    seconds: float
    source: str  # the tier, or that it is assumed
    attainment: float = 0.95  # share of requests that must meet it


def peak_hours(hardware: Hardware, traffic: Traffic, window: Window) -> dict[tuple[int, int], Peak]:
    """Return the busiest hour by (model index, region index), where there are requests.

    All interactive tiers count together, in the home region of their requests. For a window after
    the trace, it is the busiest hour of the time of equal length before, at its rate times the
    growth.
    """
    demand, tiers = traffic.demand, interactive(hardware)
    inside = demand.inside(*window.observed_s)
    hour_bins = max(1, min(int(inside.sum()), round(HOUR_S / demand.bin_s)))
    begin_s = demand.start_s + int(inside.argmax()) * demand.bin_s
    growth = float(window.growth_factors.max())
    peaks = {}
    for m, model in enumerate(hardware.models):
        for r, region in enumerate(hardware.regions):
            rows = [
                i
                for i, key in enumerate(demand.keys)
                if (key.model, key.region) == (model.name, region.name) and key.tier in tiers
            ]
            if not rows:
                continue
            by_measure = (demand.requests, demand.input_tokens, demand.output_tokens)
            # The sum over the tiers, [3, bins of the window].
            amounts = np.stack([values[rows][:, inside].sum(axis=0) for values in by_measure])
            peak = _busiest_hour(amounts, hour_bins, demand.bin_s, begin_s)
            if peak is not None:
                peaks[m, r] = replace(peak, requests_s=peak.requests_s * growth)
    return peaks


def _busiest_hour(amounts: FloatArray, width: int, bin_s: float, begin_s: float) -> Peak | None:
    """Return the ``width`` consecutive bins with the highest request rate; None without demand.

    ``amounts [3, bins]`` are requests, input and output tokens from ``begin_s`` (epoch s) on. The
    rate is that of the observed bins, without gaps (NaN).
    """
    is_observed = np.isfinite(amounts).all(axis=0)
    observed = np.where(is_observed, amounts, 0.0)
    # The sum over each run of ``width`` bins is the difference of two cumulative sums.
    sums = np.cumsum(np.pad(observed, ((0, 0), (1, 0))), axis=1)
    counts = np.cumsum(np.r_[0, is_observed])
    sums_of_runs = sums[:, width:] - sums[:, :-width]  # [3, first bin of the run]
    observed_bins = counts[width:] - counts[:-width]
    requests_s = sums_of_runs[0] / np.maximum(observed_bins, 1) / bin_s
    if not requests_s.max(initial=0.0) > 0:
        return None
    busiest = int(requests_s.argmax())
    requests, input_tokens, output_tokens = sums_of_runs[:, busiest]
    start_s = begin_s + busiest * bin_s
    return Peak(
        requests_s=float(requests_s[busiest]),
        isl=input_tokens / requests,
        osl=max(1.0, output_tokens / requests),
        start_s=start_s,
        end_s=start_s + width * bin_s,
    )


def limit_of(hardware: Hardware, m: int, phase: Phase, peaks: dict[tuple[int, int], Peak]) -> Limit:
    """Return the strictest TTFT (prefill) or TPOT (decode) limit of the tiers of model ``m``.

    Tiers are the interactive ones with traffic of the model (``Hardware.limits_of``). An end-to-end
    limit counts if the tier has no other for the phase: half of it for each phase (assumed).
    """
    name = "TTFT" if phase == "prefill" else "TPOT"
    limits: list[Limit] = []
    mean_osl = [peak.osl for (model, _), peak in peaks.items() if model == m]  # by region
    for tier in hardware.limits_of(m):
        seconds = tier.ttft_s if phase == "prefill" else tier.tbt_s
        if seconds is not None:
            limits.append(Limit(seconds, f"{name} of tier {tier.name}", tier.attainment))
        elif tier.e2e_s is not None:
            # The half of decode is spread over the tokens of the longest mean answer.
            tokens = 1.0 if phase == "prefill" else max(mean_osl, default=1.0)
            source = f"half of the end-to-end limit of tier {tier.name} (assumed)"
            limits.append(Limit(tier.e2e_s / 2 / tokens, source, tier.attainment))
    if not limits:
        return Limit(ASSUMED_SLO_S[phase], f"no tier bounds {name}; assumed")
    return min(limits, key=lambda limit: limit.seconds)


SAMPLE = 20_000  # approximate number of requests to draw lengths from


def peak_hour_lengths(
    hardware: Hardware, traffic: Traffic, model_region: tuple[str, str], peak: Peak, seed: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return (input, output, cached) tokens of the requests of a model and region in its peak hour.

    Each is ``[requests]``. If there are more, they are a sample of about ``SAMPLE`` requests.
    ``model_region`` are names.
    """
    # Only one of this many equal parts of the traffic is drawn.
    cells = max(1, round(peak.requests_s * (peak.end_s - peak.start_s) / SAMPLE))
    trace = traffic.requests(peak.start_s, peak.end_s, seed, cells=cells)
    is_counted = is_of_pool(trace, model_region, interactive(hardware))
    model, _ = model_region
    cached = cached_tokens(hardware, trace, model)
    isl, osl, cached = [
        tokens[is_counted].astype(np.int64)
        for tokens in (trace.input_tokens, trace.output_tokens, cached)
    ]
    return isl, osl, cached


def cached_tokens(hardware: Hardware, trace: Trace, model: str) -> IntArray:
    """Return how many prompt tokens of each request a prefix cache saves, ``[requests]``.

    They are those logged, or 0 if ``model`` (a name) is served without prefix caches. At least one
    token of a prompt is always computed.
    """
    names = [known_model.name for known_model in hardware.models]
    serving = hardware.serving[names.index(model)]
    if not serving.prefix_caching or not isinstance(trace.blocks, CachedTokens):
        return np.zeros(len(trace), np.int64)
    return np.minimum(trace.blocks.tokens, trace.input_tokens - 1).astype(np.int64)


def is_of_pool(trace: Trace, model_region: tuple[str, str], tiers: set[str]) -> BoolArray:
    """Return a mask of the requests of one (model, region) in one of ``tiers`` (all by name)."""
    model, region = model_region
    m, r = trace.models.index(model), trace.regions.index(region)
    tier_codes = [i for i, name in enumerate(trace.tiers) if name in tiers]
    return np.asarray((trace.model == m) & (trace.region == r) & np.isin(trace.tier, tier_codes))
