"""Store the inputs of a plan as arrays with its run, so that a what-if needs no simulation.

Sizes are capacities of pools of 1, 2, ... replicas within the SLO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from forecasting.forecast import interpolate_quantiles
from planner.domain.planning.inputs import Load, PlannedWindow
from planner.domain.planning.planning import peaks_before, plan_load
from planner.domain.progress import silent
from planner.domain.sizing.closed_form import closed_rates
from planner.domain.sizing.sizing import Sizes, in_large_pools
from planner.domain.study import Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.forecasts import SeriesForecast
from planner.domain.traffic.lengths import Lengths, LengthSample
from planner.domain.traffic.traffic import Traffic, empty_trace
from planner.domain.traffic.window import Window
from planner.errors import Infeasible, ScenarioError
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import Spare
from simulation.arrays import BoolArray, FloatArray, Int32Array, IntArray
from simulation.bisection import bisect_first
from simulation.sizing.capacity import Capacity
from simulation.sizing.trial import SharedPrompts
from simulation.trace import CachedTokens, PrefixBlocks

Arrays = dict[str, npt.NDArray[Any]]
FORMAT_VERSION = 1  # of the array format; other versions are not read
MAX_SAMPLED_REQUESTS = 2_000  # most requests per model in the sample of lengths
FACTOR_STEPS = 33  # load factors that are tried up to 1

# Fields of a basis that are stored under their own name.
PLAIN_FIELDS = (
    "clock", "current", "pool_tps", "sizes_at", "alone", "waiting_tps", "closed_rps",
    "mean_lengths", "load_factor", "models", "regions", "asked", "flat", "peaks_before",
    "blocks", "spare",
)  # fmt: skip
MEAN_LEVEL = np.nan  # marks the mean among the levels of a series


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The forecast of one series, with the quantile and the factor that were planned for."""

    model: int
    region: int
    tier: str  # group of tiers
    level: float | None  # planned quantile; None: the mean
    times: float  # factor on that level
    levels: FloatArray  # [levels] the first is the mean
    rates: FloatArray  # [levels, bins] input tokens/s

    @classmethod
    def of(cls, forecast: SeriesForecast, traffic: Traffic) -> Series:
        """Return the series of ``forecast``, with the indices of its names in ``traffic``."""
        model, region = traffic.model_and_region(forecast.key)
        return cls(
            model=model,
            region=region,
            tier=forecast.key.tier,
            level=forecast.planning_level.quantile,
            times=forecast.planning_level.factor,
            levels=np.append(MEAN_LEVEL, forecast.levels),
            rates=np.concatenate([forecast.mean[None], forecast.quantiles]) / forecast.bin_s,
        )

    def rate(self, level: float | None) -> FloatArray:
        """Return quantile ``level`` of the forecast (None: the mean), ``[bins]`` input tokens/s."""
        if level is None:
            return np.asarray(self.rates[0], np.float64)  # the first of ``levels`` is the mean
        (rate,) = interpolate_quantiles(self.levels[1:], self.rates[1:], np.array([level]))
        return np.asarray(rate)

    @property
    def planned_rate(self) -> FloatArray:
        """Return the rate that was planned for, ``[bins]`` input tokens/s."""
        return np.asarray(self.times * self.rate(self.level), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """The stored inputs of a plan.

    Axes: ``l`` models, ``r`` regions, ``g`` GPU columns of ``Hardware``; ``p`` periods, ``w`` bins
    of a period, ``n`` replicas of a pool less one.
    """

    window: Window
    clock: str
    current: IntArray  # [l, r, g]
    pool_tps: FloatArray  # [s, l, g, n] sizes at the first decision and at later changes
    sizes_at: IntArray  # [p] index s of the sizes for each period's decision
    alone: FloatArray  # [4, l, g] max_rps, input_tps, ttft_s, tbt_s of one replica; NaN: none
    # [2, l, g] by closed forms, of one replica and of each in a large pool; NaN: unknown
    closed_rps: FloatArray
    lengths: tuple[Lengths, ...]  # [l] sample of request lengths
    mean_lengths: FloatArray  # [l, 2] mean input and output tokens of all requests
    series: tuple[Series, ...]
    waiting_tps: FloatArray  # [p, l, r, w] deferrable load as planned
    load_factor: float  # factor of the plan's policy on the whole load
    models: tuple[str, ...]
    regions: tuple[str, ...]
    asked: BoolArray | None = None  # [l, tiers] as in ``Hardware``
    flat: IntArray | None = None  # [l, r, g] the recommended static fleet, if any
    # [l, r, 1] peaks that ``current`` was sized on; None: the scenario states the current fleet
    peaks_before: FloatArray | None = None
    # [l] cached tokens of the prompts in ``lengths``; None: not counted
    cached: tuple[Int32Array | None, ...] = ()
    blocks: bool = False  # whether sizes found cached prompts by block hashes
    # Spare replicas of the plan: number, whether by pool, regions; None: those of the scenario.
    # A comparison adds N+1 if its level of assurance requires it.
    spare: IntArray | None = None

    def prompts(self, m: int) -> SharedPrompts | None:
        """Return a sample of model ``m``'s requests with their cached tokens.

        None if the traffic does not count cached tokens.
        """
        tokens = self.cached[m] if self.cached else None
        return None if tokens is None else SharedPrompts(*self.lengths[m], CachedTokens(tokens))

    def with_interval(self, period_s: float) -> Basis:
        """Return the inputs with a scaling decision every ``period_s`` s, on the same forecasts.

        Raises ScenarioError unless ``period_s`` is a whole number of bins and divides the stored
        interval.
        """
        window, (periods, models, regions, bins) = self.window, self.waiting_tps.shape
        parts, part_bins = round(window.period_s / period_s), round(period_s / window.bin_s)
        if parts * part_bins != bins or not np.isclose(part_bins * window.bin_s, period_s):
            divisors = (parts for parts in range(1, bins + 1) if bins % parts == 0)
            minutes = (window.period_s / parts / 60 for parts in divisors)
            raise ScenarioError(
                "Scaling interval (horizon.period_s): the stored forecast allows "
                f"{', '.join(f'{allowed:g}' for allowed in minutes)} min. Simulate others."
            )
        # Each part of a period becomes a period: [p * parts, l, r, part_bins].
        by_part = self.waiting_tps.reshape(periods, models, regions, parts, part_bins)
        return replace(
            self,
            window=replace(window, period_s=period_s),
            sizes_at=np.repeat(self.sizes_at, parts),
            waiting_tps=np.moveaxis(by_part, 3, 1).reshape(-1, models, regions, part_bins),
        )

    def with_spare(self, scenario: Scenario) -> Scenario:
        """Return ``scenario`` with the spare replicas of the plan."""
        if self.spare is None:
            return scenario
        instances, by_pool, regions = self.spare.tolist()
        spare = Spare(instances=instances, by="pool" if by_pool else "region", regions=regions)
        objective = scenario.objective.model_copy(update={"spare": spare})
        return scenario.model_copy(update={"objective": objective})

    @property
    def sizes(self) -> Sizes:
        """Return the sizes as planning uses them."""
        first, *later = map(self._sizes, self.pool_tps)
        return replace(first, later=tuple(later), of_period=self.sizes_at)

    def _sizes(self, pool_tps: FloatArray) -> Sizes:
        """Return sizes with the capacities ``pool_tps [l, g, n]``, and the stored single replicas.

        Limits of a replica are not stored, since a plan does not need them.
        """
        capacity = {}
        for m, g in np.argwhere(np.isfinite(self.alone[0])).tolist():
            max_rps, input_tps, ttft_s, tbt_s = self.alone[:, m, g].tolist()
            capacity[m, g] = "", Capacity(max_rps, input_tps, ttft_s, tbt_s, "", np.nan)
        theta = in_large_pools(pool_tps)
        return Sizes(theta_tps=theta, pool_tps=pool_tps, capacity=capacity, notes=())

    @property
    def traffic(self) -> Traffic:
        """Return the traffic without requests and demand: only names, clock and mean lengths.

        Planning takes the demand from ``series``.
        """
        requests = empty_trace(self.models, self.regions)
        no_bins = np.empty((0, 0))
        demand = Demand((), self.window.start_s, self.window.bin_s, no_bins, no_bins, no_bins)
        return Traffic(
            models=self.models, regions=self.regions, tiers=(), demand=demand, clock=self.clock,
            replay="", notes=(), measured=requests, binned=(),
            lengths=tuple((row[:1], row[1:]) for row in self.mean_lengths),
        )  # fmt: skip


def basis_of(
    study: Study,
    planned_window: PlannedWindow,
    load_factor: float = 1.0,
    flat: IntArray | None = None,
) -> Basis:
    """Return the inputs of a plan, to be stored.

    ``planned_window`` has the forecasts and the load of the plan. ``load_factor`` is the factor of
    the plan's policy on the forecast. ``flat [model, region, GPU column]`` is the static fleet that
    is recommended in place of a plan, if any.
    """
    window, traffic, sizes, hardware = study.window, study.traffic, study.sizes, study.hardware
    samples = request_samples(traffic)
    lengths = tuple(sample.lengths for sample in samples)
    prompts = [sample.shared_prompts for sample in samples]
    periods, spare = len(window.period_starts_s), study.settings.plan.spare
    if flat is None:  # as large as possible with the same plan
        load_factor = _largest_factor(study, planned_window, load_factor)
    series = tuple(Series.of(forecast, traffic) for forecast in planned_window.forecasts)
    has_blocks = any(
        shared and isinstance(shared.blocks, PrefixBlocks) for shared in traffic.shared
    )
    return Basis(
        window=window,
        clock=traffic.clock,
        current=study.plan_input.current,
        pool_tps=np.stack([sizes.pool_tps, *(later.pool_tps for later in sizes.later)]),
        sizes_at=np.zeros(periods, np.int64) if sizes.of_period is None else sizes.of_period,
        alone=_replicas_alone(study),
        closed_rps=closed_rates(hardware, sizes.capacity, lengths, prompts),
        lengths=lengths,
        mean_lengths=np.array([(isl.mean(), osl.mean()) for isl, osl in traffic.lengths]),
        series=series,
        waiting_tps=_deferrable_tps(planned_window.load, series),
        load_factor=load_factor,
        models=traffic.models,
        regions=traffic.regions,
        asked=hardware.tiers_in_use,
        flat=flat,
        spare=np.array([spare.instances, spare.by_pool, spare.region], np.int64),
        peaks_before=None if hardware.today is not None else peaks_before(study.plan_input),
        blocks=traffic.prefix_caching and has_blocks,
        cached=tuple(None if sample.cached is None else sample.cached.tokens for sample in samples),
    )


def _replicas_alone(study: Study) -> FloatArray:
    """Return the capacity of a single replica, ``[4, model, GPU column]``; NaN where none is sized.

    The four values are requests/s, input tokens/s, TTFT and TBT (s).
    """
    models, _, columns = study.hardware.minimum.shape
    alone = np.full((4, models, columns), np.nan)
    for (m, g), (_, replica) in study.sizes.capacity.items():
        alone[:, m, g] = replica.max_rps, replica.input_tps, replica.ttft_s, replica.tbt_s
    return alone


def _deferrable_tps(load: Load, series: Sequence[Series]) -> FloatArray:
    """Return the planned load without the interactive ``series``, ``[p, l, r, w]`` tokens/s."""
    tps = load.tps.copy()
    for demand in series:
        tps[:, demand.model, demand.region] -= demand.planned_rate.reshape(len(tps), -1)
    return np.where(np.abs(tps) > 1e-9, tps, 0.0)  # no rounding errors


def _largest_factor(study: Study, planned_window: PlannedWindow, load_factor: float) -> float:
    """Return the largest load factor, up to 1, that leads to the same plan as ``load_factor``.

    With a smaller one, a what-if would plan for growth too late: in capacity that the plan needs.
    """
    if load_factor >= 1:
        return load_factor

    def planned_replicas(factor: float) -> list[int] | None:
        """Return the replicas planned for ``factor`` times the load; None if there is no plan."""
        try:
            plan = plan_load(study.plan_input, planned_window.load.scaled(factor), silent)
        except Infeasible:
            return None
        return plan.target.ravel().tolist()

    same_plan = planned_replicas(load_factor)
    factors = np.linspace(load_factor, 1.0, FACTOR_STEPS).tolist()
    first_other = bisect_first(lambda i: planned_replicas(factors[i]) != same_plan, 1, len(factors))
    return float(factors[first_other - 1])


def request_samples(traffic: Traffic) -> list[LengthSample]:
    """Return a sample of each model's request lengths, with cached tokens if they are counted."""
    shared = traffic.shared or [None] * len(traffic.lengths)
    return list(map(_sample_of_requests, traffic.lengths, shared))


def _sample_of_requests(lengths: Lengths, shared: SharedPrompts | None) -> LengthSample:
    """Return requests of a model, equally spaced in the order of prompt length.

    There are at most ``MAX_SAMPLED_REQUESTS``. They are drawn from ``shared`` if it counts cached
    tokens, else from ``lengths``.
    """
    cached = shared.blocks if shared and isinstance(shared.blocks, CachedTokens) else None
    isl, osl = (shared.isl, shared.osl) if shared and cached else lengths
    chosen = np.arange(len(isl))
    if len(isl) > MAX_SAMPLED_REQUESTS:
        by_length = np.argsort(isl, kind="stable")
        chosen = by_length[
            np.linspace(0, len(isl) - 1, MAX_SAMPLED_REQUESTS).round().astype(np.int64)
        ]
    chosen_cached = None if cached is None else cached.rows(chosen)
    return LengthSample((isl[chosen], osl[chosen]), float(len(isl)), chosen_cached)


def as_arrays(basis: Basis) -> Arrays:
    """Return the inputs as arrays for one npz file; ``from_arrays`` reads them."""
    window, series = basis.window, basis.series
    plain = {name: getattr(basis, name) for name in PLAIN_FIELDS}
    arrays = {name: np.array(value) for name, value in plain.items() if value is not None}
    edges_s = window.start_s, window.end_s
    arrays |= {
        "version": np.array(FORMAT_VERSION),
        "window": np.array([*edges_s, window.period_s, window.lead_s, window.bin_s]),
        "ahead": np.array(window.after_traffic),
        "places": np.array([(row.model, row.region) for row in series], np.int64).reshape(-1, 2),
        "tiers": np.array([row.tier for row in series], np.str_),
        # None, the mean, becomes NaN.
        "heights": np.array([(row.level, row.times) for row in series], float).reshape(-1, 2),
        "levels": np.array([row.levels for row in series]),
        "rates": np.array([row.rates for row in series]),
    }
    for m, (isl, osl) in enumerate(basis.lengths):
        arrays |= {f"isl_{m}": np.asarray(isl), f"osl_{m}": np.asarray(osl)}
    for m, cached in enumerate(basis.cached):
        if cached is not None:
            arrays[f"cached_{m}"] = cached
    return arrays


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Basis | None:
    """Return the inputs from their stored arrays; None if the format has another version."""
    if "version" not in arrays or int(arrays["version"]) != FORMAT_VERSION:
        return None
    start_s, end_s, period_s, lead_s, bin_s = arrays["window"].tolist()
    plain = _plain_fields(arrays)
    models = range(len(plain["models"]))
    return Basis(
        window=Window(start_s, end_s, period_s, lead_s, bin_s, bool(arrays["ahead"])),
        lengths=tuple((arrays[f"isl_{m}"], arrays[f"osl_{m}"]) for m in models),
        cached=tuple(arrays.get(f"cached_{m}") for m in models),
        series=tuple(_series_from(arrays, i) for i in range(len(arrays["tiers"]))),
        **plain,
    )


def _plain_fields(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the fields ``PLAIN_FIELDS`` of a basis from the stored arrays."""
    plain: dict[str, Any] = {name: arrays.get(name) for name in PLAIN_FIELDS}
    plain["models"] = tuple(arrays["models"].tolist())
    plain["regions"] = tuple(arrays["regions"].tolist())
    plain["clock"], plain["load_factor"] = str(arrays["clock"]), float(arrays["load_factor"])
    plain["blocks"] = bool(arrays.get("blocks", False))
    if plain["closed_rps"].ndim == 2:  # runs of older versions know one replica alone
        alone = plain["closed_rps"]
        plain["closed_rps"] = np.stack([alone, np.full_like(alone, np.nan)])
    return plain


def _series_from(arrays: Mapping[str, npt.NDArray[Any]], i: int) -> Series:
    """Return series number ``i`` of the stored arrays."""
    (m, r), (level, times) = arrays["places"][i].tolist(), arrays["heights"][i].tolist()
    return Series(
        model=m,
        region=r,
        tier=str(arrays["tiers"][i]),
        level=None if np.isnan(level) else level,
        times=times,
        levels=arrays["levels"][i],
        rates=arrays["rates"][i],
    )
