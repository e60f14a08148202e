"""Run the search for one model, and assemble the answer."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.domain.deployment_search.candidates import KV_CACHE, ReportProgress, instances_of
from planner.domain.deployment_search.query import RELEASED, DeploymentQuery, HourPrice, price_of
from planner.domain.deployment_search.results import Row, fronts_of, profiles_of, rows_of
from planner.domain.recommend.rule import TIE
from planner.errors import CatalogueError, PlannerError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import EstimateFit, estimate_fit
from planner.inputs.catalogue.hardware import gpu_known_as
from planner.inputs.catalogue.names import stated_precision
from planner.inputs.catalogue.serving import MAX_BATCH, MAX_BATCH_TOKENS
from planner.inputs.estimates.measured_corrections import MeasuredCorrections
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import GpuSpec, ModelShape
from simulation.search.search import SearchResult, search
from simulation.search.table import candidate_count
from simulation.search.values import Instance

BUILDING = 0.6  # share of the time that it takes to build replicas, for the progress


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption behind the answer, with its source."""

    what: str
    value: str
    provenance: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSearchResult:
    """The answer to a query."""

    model: str
    isl: int
    osl: int
    ttft_ms: float | None  # the limit of the query
    tbt_ms: float | None
    percentile: float
    rps: float | None
    candidates: tuple[Row, ...]
    pareto: tuple[Row, ...]
    by_gpu: tuple[Row, ...]  # the best of each GPU type
    ruled_out: Mapping[str, int]
    evaluated: int
    ranked_by: str
    assumptions: tuple[Assumption, ...]
    seconds: float

    @property
    def simplest(self) -> Row | None:
        """Return the simplest candidate within ``TIE`` of the cost of the first, the cheapest.

        Aggregated deployments are simpler than disaggregated ones, and fewer GPUs are simpler than
        more. None: there are no candidates.
        """
        if not self.candidates:
            return None
        first = self.candidates[0]

        def cost(row: Row) -> float:
            """Return the cost of a candidate in dollars, or in GPUs if prices are not known."""
            if first.usd_per_mtok is None:
                return 1 / row.rps_per_gpu
            return row.fleet_usd_per_hour or row.usd_per_mtok or math.inf

        highest = cost(first) * (1.0 + TIE)
        equal = [row for row in self.candidates if cost(row) <= highest]
        return min(equal, key=lambda row: (row.mode == "disagg", row.gpus))


def search_deployments(
    query: DeploymentQuery,
    user_facts: UserFacts = NO_USER_FACTS,
    report: ReportProgress = lambda done, what: None,
    measurements: MeasuredCorrections | None = None,
) -> DeploymentSearchResult:
    """Return the best deployments of a model, over GPU types, parallelism, precisions and engines.

    The search includes disaggregated deployments unless the query excludes them. ``user_facts`` are
    the user's own models and GPU types. The user's ``measurements`` correct speeds and expected
    errors. Raises PlannerError if a name is unknown, or if the requests exceed the model's context.
    """
    begun = time.perf_counter()
    shape, published = _model(query, user_facts)
    gpus = _gpus_to_search(query, user_facts)
    prices = _prices_of(gpus, query.prices, user_facts)
    times = measurements.times if measurements else None
    built = instances_of(
        shape, published, gpus, prices, query.engines or ENGINES,
        lambda done, what: report(BUILDING * done, what), times,
    )  # fmt: skip
    instances, excluded = _instances_to_search(built.instances, query, published)
    searched = search(
        instances, query.requests, top=query.top, seed=query.seed,
        report=lambda done, what: report(BUILDING + (1.0 - BUILDING) * done, what),
    )  # fmt: skip
    fit = estimate_fit()
    best = rows_of(searched.best, query, shape, fit, measurements)
    assumed = _assumptions(query, searched, prices, published, fit)
    ruled_out = built.ruled_out + excluded + Counter(searched.ruled_out)
    return DeploymentSearchResult(
        model=shape.name,
        isl=query.isl,
        osl=query.osl,
        ttft_ms=query.ttft_ms,
        tbt_ms=query.tbt_ms,
        percentile=query.percentile,
        rps=query.rps,
        candidates=tuple(
            replace(row, profiles=tuple(profiles_of(row, query.model))) for row in best
        ),
        pareto=fronts_of(searched, query, shape, fit, measurements),
        by_gpu=rows_of(searched.by_gpu, query, shape, fit, measurements),
        ruled_out=dict(ruled_out.most_common()),
        # Candidates that fit are in both counts: of those built, and of those searched.
        evaluated=built.evaluated + searched.evaluated - candidate_count(instances),
        ranked_by=_ranked_by(query, best),
        assumptions=(*assumed, *_measurement_assumptions(measurements)),
        seconds=time.perf_counter() - begun,
    )


def _instances_to_search(
    instances: Sequence[Instance], query: DeploymentQuery, published: str
) -> tuple[Sequence[Instance], Counter[str]]:
    """Return the replicas that the query allows, and the number of excluded candidates by reason.

    ``published`` is the precision of the released weights.
    """
    excluded: Counter[str] = Counter()
    if query.precisions:
        allowed = {published if name == RELEASED else name for name in query.precisions}
        before = candidate_count(instances)
        instances = [row for row in instances if row.where.weights in allowed]
        excluded["precision excluded by the search"] = before - candidate_count(instances)
    if not query.disaggregated:
        # A replica that can serve in both modes stays, for aggregated use alone.
        instances = [replace(row, mode="agg") for row in instances if row.mode != "disagg"]
    return instances, excluded


def _model(query: DeploymentQuery, user_facts: UserFacts) -> tuple[ModelShape, str]:
    """Return (shape without an encoder, precision of the released weights) of the query's model.

    Raises PlannerError if the shape is not known, or if the requests exceed the context.
    """
    if query.model in user_facts.models:
        described = user_facts.models[query.model].shape
        if described is None:
            raise PlannerError(
                f"model {query.model} has a memory size and no shape. Add it from its config.json."
            )
        shape = described
        published = stated_precision(query.model) or "bf16"
    else:
        shape = catalogue.shape(query.model)
        published = catalogue.published_precision(query.model)
    if query.isl + query.osl > shape.max_context:
        raise PlannerError(
            f"isl {query.isl:,} and osl {query.osl:,} are {query.isl + query.osl:,} tokens, and "
            f"the context of {shape.name} is {shape.max_context:,}. Give less."
        )
    return replace(shape, encoder=None), published


def _gpus_to_search(query: DeploymentQuery, user_facts: UserFacts) -> list[GpuSpec]:
    """Return the GPU types to search; raise CatalogueError for an unknown name."""
    if not query.gpus:
        all_gpus = {**catalogue.gpus(), **user_facts.gpus}
        return [gpu for gpu in all_gpus.values() if gpu.bandwidth_bytes_s and gpu.peak_flops]
    gpus = {}
    for name in query.gpus:
        gpu = user_facts.gpus[name] if name in user_facts.gpus else catalogue.gpu(name)
        gpus[gpu.name] = gpu
    return list(gpus.values())


def _prices_of(
    gpus: Sequence[GpuSpec], stated: Mapping[str, float], user_facts: UserFacts
) -> dict[str, HourPrice]:
    """Return the price of each of ``gpus``: as ``stated`` (USD per GPU-hour), else published.

    Raises CatalogueError if a price is stated for a GPU type that is not among them.
    """
    usd_by_name = {
        name if name in user_facts.gpus else gpu_known_as(name): usd for name, usd in stated.items()
    }
    prices = {gpu.name: price_of(gpu.name, usd_by_name) for gpu in gpus}
    for name in usd_by_name:
        if name not in prices:
            raise CatalogueError(
                f"price of {name}: the search has no such GPU type. Choose from "
                f"{', '.join(prices)}."
            )
    return prices


def _ranked_by(query: DeploymentQuery, best: tuple[Row, ...]) -> str:
    """Return the figure by which candidates are ranked, in words."""
    if best and best[0].usd_per_hour is None:
        return "requests/s per GPU, because no price is known"
    if query.rps is not None:
        return f"dollars an hour of all replicas for {query.rps:g} requests/s"
    return "dollars per million tokens at full load"


def _measurement_assumptions(measurements: MeasuredCorrections | None) -> tuple[Assumption, ...]:
    """Return the use of the user's measurements as assumptions, and why some were not used."""
    if measurements is None:
        return ()
    files = ", ".join(dict.fromkeys(row.source for row in measurements.rows))
    used = Assumption(
        "Your measured rows",
        f"{len(measurements.rows):,} correct speeds and errors, by their similarity to a "
        "deployment",
        "measured", files,
    )  # fmt: skip
    return (
        used,
        *(Assumption("Excluded measurement", note, "measured", "") for note in measurements.notes),
    )


def _assumptions(
    query: DeploymentQuery,
    searched: SearchResult,
    prices: Mapping[str, HourPrice],
    published: str,
    fit: EstimateFit,
) -> tuple[Assumption, ...]:
    """Return the assumptions that the query does not state, each with its source."""
    overheads = {name: 1000 * fit.calibration.of("start", name) for name in ENGINES}
    assumptions = [
        Assumption(
            "Speeds", "published peaks of each GPU x efficiency of measured kernels",
            "modelled", "as kind: roofline of a scenario, with the engine's host time",
        ),
        Assumption(
            "Weights as released", published, "published", "the model's catalogue entry"
        ),
        Assumption("KV cache", KV_CACHE, "assumed", "the engines' default"),
        Assumption(
            "Maximum sequences and tokens per iteration",
            f"{MAX_BATCH:,} and {MAX_BATCH_TOKENS:,} per copy of attention",
            "assumed", "vLLM's defaults",
        ),
        Assumption("Requests", f"all of {query.isl:,} and {query.osl:,} tokens, Poisson arrivals",
                   "assumed", "as asked"),
        Assumption(
            "Engine overhead before the first iteration, part of TTFT",
            ", ".join(f"{name} {ms:.0f} ms" for name, ms in overheads.items()),
            "measured", fit.source,
        ),
    ]  # fmt: skip
    if query.ttft_ms is None and query.tbt_ms is None:
        assumptions.append(
            Assumption("Limits", "none: ranked by throughput", "assumed", "no limit was given")
        )
    if query.rps is not None:
        assumptions.append(
            Assumption(
                "Several replicas", "each has the capacity of one replica. A pool has more",
                "assumed", "bin/manage size shows how much more",
            )
        )  # fmt: skip
    return (*assumptions, *_price_assumptions(searched, prices))


def _price_assumptions(
    searched: SearchResult, prices: Mapping[str, HourPrice]
) -> Iterator[Assumption]:
    """Yield the sources of the prices in general, and of each GPU type in the results."""
    offers, what = catalogue.prices()[0].provenance, "Prices that you did not enter"
    yield Assumption(what, "those of the catalogue", offers.kind, offers.source)
    shown = [rated.candidate.decode.gpu.name for rated in (*searched.best, *searched.by_gpu)]
    for name in dict.fromkeys(shown):
        usd, source = prices[name].usd, prices[name].provenance
        value = f"${usd:.2f} an hour" if usd > 0 else "not known"
        yield Assumption(f"Price of {name}", value, source.kind, source.source)
