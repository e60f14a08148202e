"""Answer how many GPUs serve a number of users or a request rate, without trace or scenario."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from planner.domain.deployment_search.query import RELEASED, DeploymentQuery, price_of
from planner.domain.deployment_search.results import ExpectedError as SearchError
from planner.domain.estimate_answer import EstimateAnswer, ExpectedError, Refused
from planner.domain.formats import milliseconds
from planner.domain.options import RunOptions
from planner.domain.serialise import OPTIONAL
from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.services.deployment_search import search_deployments
from planner.services.estimates import estimate_many
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.estimate.defaults import MOST_HITS
from simulation.performance.fitting.compare import stated_check_of
from simulation.performance.profile import Profile
from simulation.sizing.batch_queue import Evaluation, evaluate_pool, saturated_rps
from simulation.sizing.capacity import SizingCase
from simulation.sizing.pool import fewest_instances, pool_curve
from simulation.sizing.trial import rates_around_limit
from simulation.sizing.workload import Workload
from simulation.trace import CachedTokens

WIDTHS = (1, 2, 4, 8)  # numbers of GPUs per replica that are compared
MAX_PER_REPLICA = 1024  # most users at once of a replica that are considered
SPARE_REPLICAS = 1  # recommended, so that the load is served if one replica fails
MEAN_TTFT = "TTFT and its limit: mean under steady traffic. Higher when all users start together."
PERCENTILE = 95.0  # percent of requests within the limits at a request rate
NEARLY, TRICKLE = 0.98, 1e-6  # shares of the saturated rate: queues too long, and no queue
STEADY_ROUNDS = 1000.0  # requests of each user: many, so that they do not all begin at once
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Milliseconds = Annotated[float, Field(ge=0.001, le=1e8)]


class SizeQuestion(RunOptions):
    """A sizing question: either concurrent ``users``, or ``rps`` (requests per second).

    Command line, API and page take it from this declaration.
    """

    model: str = Field(title="Model", max_length=200)
    """Name in the catalogue."""
    gpu: str = Field(title="GPU or cloud instance", max_length=200)
    """GPU type or cloud instance."""
    users: int | None = Field(None, title="Concurrent users", ge=1, le=1_000_000)
    """Requests in flight. Alternative: rps."""
    rps: float | None = Field(None, title="or requests/s", ge=1e-6, le=1e6)
    """Requests per second. Alternative: users."""
    isl: Tokens = Field(1000, title="Input tokens")
    """Input tokens. Default: 1000."""
    osl: Tokens = Field(500, title="Output tokens")
    """Output tokens. Default: 500."""
    ttft_ms: Milliseconds = Field(2000.0, title="TTFT limit, ms")
    """Time to first token. Default: 2000."""
    tbt_ms: Milliseconds = Field(50.0, title="TPOT limit, ms")
    """Time per output token. Default: 50."""
    cached_share: float = Field(0.0, title="Prefix hit rate", ge=0, le=MOST_HITS)
    """Share of input tokens in a prefix cache. Default: 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickSize:
    """The smallest fleet that answers a sizing question, and the one with a spare replica."""

    gpus: int
    replicas: int
    tp: int  # GPUs of one replica
    gpu: str
    model: str
    ttft_ms: float | None
    tbt_ms: float | None
    tokens_per_s: float  # output tokens of all replicas
    expected_error: ExpectedError | SearchError
    assumptions: tuple[str, ...]
    users_per_replica: float | None = field(default=None, metadata={OPTIONAL: True})
    rps_per_replica: float | None = field(default=None, metadata={OPTIONAL: True})
    cost_usd_per_hour: float | None = None
    recommended_replicas: int = 0  # with the spare replica
    recommended_gpus: int = 0
    recommended_cost_usd_per_hour: float | None = None
    tpot_ms: float | None = None  # the same as tbt_ms
    price_basis: str = ""  # the price of a GPU-hour, and the offers that it comes from


def quick_size(question: SizeQuestion) -> QuickSize:
    """Return the fewest GPUs that meet both latency limits, with cost and assumptions.

    A replica with a built-in profile has that profile's speed, as in plans. Others have an
    estimated speed. Raises PlannerError if no replica meets the limits, or unless exactly one load
    is given.
    """
    if (question.users is None) == (question.rps is None):
        raise PlannerError("Give either users (requests in flight) or rps.")
    name, gpu_type = catalogue.model_name(question.model), catalogue.gpu_name(question.gpu)
    profiles = [
        profile
        for (model, gpu, width), profile in catalogue.profiles().items()
        if (model, gpu) == (name, gpu_type) and width in WIDTHS
    ]
    sizes_or_none = [_size_on_profile(question, profile) for profile in profiles]
    sizes = [size for size in sizes_or_none if size is not None]
    # Percentiles are estimated only for a rate of requests without a prefix cache.
    by_mean = question.users is not None or question.cached_share
    estimated_size = _fewest_by_estimates if by_mean else _cheapest_for_rate
    try:
        sizes.append(estimated_size(question, {profile.tp for profile in profiles}))
    except PlannerError:  # no estimated replica meets the limits
        if not sizes:
            raise
    size = min(sizes, key=lambda size: (size.gpus, size.tp))
    price = price_of(size.gpu, {})
    has_price, offers = isfinite(price.usd), price.provenance.source
    price_basis = f"Cost: {offers}."
    if has_price:
        price_basis = f"A GPU-hour costs ${price.usd:,.2f} ({offers})."
    with_spare = size.replicas + SPARE_REPLICAS
    gpus_with_spare = with_spare * size.tp
    assumptions = [f"Every request has {question.isl:,} input and {question.osl:,} output tokens."]
    if question.cached_share:
        assumptions.append(f"A prefix cache has {question.cached_share:.0%} of the input tokens.")
    assumptions += [
        f"Limits: TTFT {milliseconds(question.ttft_ms)}, TPOT {milliseconds(question.tbt_ms)}.",
        price_basis,
    ]
    return replace(
        size,
        cost_usd_per_hour=size.gpus * price.usd if has_price else None,
        recommended_replicas=with_spare,
        recommended_gpus=gpus_with_spare,
        recommended_cost_usd_per_hour=gpus_with_spare * price.usd if has_price else None,
        tpot_ms=size.tbt_ms,
        price_basis=price_basis,
        assumptions=(*assumptions, *size.assumptions),
    )


def _size_on_profile(question: SizeQuestion, profile: Profile) -> QuickSize | None:
    """Return the fewest replicas with the speed of ``profile``; None if it misses the limits.

    For users in flight, mean latencies count. For a rate, the limits hold at PERCENTILE.
    """
    isl, osl = np.array([question.isl]), np.array([question.osl])
    cached = CachedTokens(np.rint(question.cached_share * isl)) if question.cached_share else None
    tier = Tier("limits", question.ttft_ms / 1e3, question.tbt_ms / 1e3, None, PERCENTILE / 100)
    rps = question.rps or 0.0  # of the fleet; for users it is computed below
    try:
        if question.users is not None:
            workload = Workload(isl, osl, cached=cached)
            replicas, replica = _replicas_for_users(question, profile, workload)
            ttft_s, tbt_s = replica.ttft.mean, replica.tbt.mean
            replica_rps = replica.rate
            rps = replicas * replica_rps
        else:
            curve = pool_curve(SizingCase(profile, (isl, osl), tier, blocks=cached))
            replicas = fewest_instances(curve.max_rps, rps)
            ttft_s, tbt_s = curve.alone.ttft_s, curve.alone.tbt_s
            replica_rps = curve.alone.max_rps
    except SimulationError:
        return None
    error = stated_check_of(profile)
    assert error is not None  # the catalogue has a check of each
    return QuickSize(
        gpus=replicas * profile.tp,
        replicas=replicas,
        tp=profile.tp,
        gpu=profile.gpu,
        model=profile.model,
        ttft_ms=ttft_s * 1e3,
        tbt_ms=tbt_s * 1e3 if question.osl > 1 else None,
        tokens_per_s=rps * question.osl,
        expected_error=SearchError(
            ttft=error.median, tbt=error.median, ttft_90=error.p95, tbt_90=error.p95,
            basis=f"{error.quantity}: {error.against}",
        ),
        assumptions=(
            *_load_words(question),
            f"Speed: built-in profile ({profile.provenance.kind}), as in plans.",
        ),
        users_per_replica=question.users / replicas if question.users else None,
        rps_per_replica=replica_rps if question.rps else None,
    )  # fmt: skip


def _replicas_for_users(
    question: SizeQuestion, profile: Profile, workload: Workload
) -> tuple[int, Evaluation]:
    """Return the fewest replicas on which mean latencies are within the limits.

    The second value is the evaluation of one of them, at the rate that keeps an equal share of the
    users in flight on average. Arrivals are Poisson. Raises SimulationError if no replica meets the
    limits.
    """
    users, ttft_s, tbt_s = question.users or 0, question.ttft_ms / 1e3, question.tbt_ms / 1e3
    max_rps = saturated_rps(profile, workload)

    def at_largest_rate(is_allowed: Callable[[Evaluation], bool]) -> Evaluation:
        """Return the evaluation of a replica at the largest rate that ``is_allowed``."""
        rates = rates_around_limit(
            lambda rps: is_allowed(evaluate_pool(profile, workload.at(rps))), max_rps / 2,
            step=4.0, lowest=TRICKLE * max_rps, highest=NEARLY * max_rps, precision=1e-3,
        )  # fmt: skip
        if rates is None:
            raise SimulationError(f"No rate of {profile.model} meets the limits.")
        allowed_rps, _ = rates
        return evaluate_pool(profile, workload.at(allowed_rps))

    def users_in_flight(replica: Evaluation) -> float:
        """Return the mean number of requests in a replica, by Little's law."""
        return replica.rate * replica.e2e.mean

    def meets_limits(replica: Evaluation) -> bool:
        """Return whether the mean latencies are within the limits."""
        return replica.ttft.mean <= ttft_s and replica.tbt.mean <= tbt_s

    max_users = min(users_in_flight(at_largest_rate(meets_limits)), users)
    replicas = ceil(users / max_users)
    users_of_replica = users / replicas
    return replicas, at_largest_rate(lambda replica: users_in_flight(replica) <= users_of_replica)


def loads_of(users: int) -> list[int]:
    """Return the numbers of users per replica to try, largest first.

    They are those of the fewest possible replicas and of up to 64 more, and all powers of two.
    """
    fewest = max(1, ceil(users / MAX_PER_REPLICA))
    loads = {ceil(users / replicas) for replicas in range(fewest, min(users, fewest + 64) + 1)}
    loads |= {2**power for power in range(11) if 2**power < users}  # 2**10 is MAX_PER_REPLICA
    return sorted((load for load in loads if load <= MAX_PER_REPLICA), reverse=True)


def _fewest_by_estimates(question: SizeQuestion, profiled: Collection[int]) -> QuickSize:
    """Return the fewest GPUs on which estimated mean latencies meet both limits.

    No replica has a number of GPUs in ``profiled``. The load is of users in flight, or a rate of
    requests whose prompts are partly cached. Raises PlannerError if no replica meets the limits.
    """
    fit = _fewest_gpus(question, profiled)
    replicas, answer, rps = fit.gpus // fit.gpus_per_replica, fit.answer, question.rps or 0.0
    load = f"{rps:g} requests arrive per second."
    tokens_per_s = rps * question.osl
    if question.users is not None:
        load = f"{question.users:,} requests run or wait at any time."
        tokens_per_s = answer.tokens_per_s * replicas
    return QuickSize(
        gpus=fit.gpus,
        replicas=replicas,
        tp=fit.gpus_per_replica,
        gpu=answer.gpu,
        model=answer.model,
        ttft_ms=answer.ttft_ms,
        tbt_ms=answer.tbt_ms,
        tokens_per_s=tokens_per_s,
        expected_error=answer.expected_error,
        assumptions=(load, MEAN_TTFT, *answer.assumptions),
        users_per_replica=question.users / replicas if question.users else None,
        rps_per_replica=answer.tokens_per_s / question.osl if rps else None,
    )


class _Fit(NamedTuple):
    """Replicas that meet the limits; fewer GPUs are better, then fewer GPUs per replica."""

    gpus: int  # of all replicas
    gpus_per_replica: int
    answer: EstimateAnswer


def _fewest_gpus(question: SizeQuestion, profiled: Collection[int]) -> _Fit:
    """Return the replicas with the fewest GPUs; raise PlannerError if none meets the limits.

    A replica has a number of GPUs (tp) that is not in ``profiled``. Mean latencies count.
    """
    name, gpu_type = catalogue.model_name(question.model), catalogue.gpu_name(question.gpu)
    lengths = {"isl": question.isl, "osl": question.osl, "prefix_hit_rate": question.cached_share}
    replica = {"model": name, "gpu": gpu_type, "rounds": STEADY_ROUNDS, **lengths}
    rows: list[dict[str, Any]] = []
    for tp in WIDTHS:
        if tp not in profiled:
            loads = loads_of(question.users or MAX_PER_REPLICA)
            rows += [{**replica, "tp": tp, "concurrency": load} for load in loads]
    answers = estimate_many(rows)
    fits = []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, Refused):
            continue
        if answer.ttft_ms <= question.ttft_ms and answer.tbt_ms <= question.tbt_ms:
            if question.users is not None:
                replicas = ceil(question.users / row["concurrency"])
            else:
                replicas = ceil((question.rps or 0.0) * question.osl / answer.tokens_per_s)
            fits.append(_Fit(replicas * row["tp"], row["tp"], answer))
    if not fits:
        raise PlannerError(
            f"No replica of {name} on 1 to {WIDTHS[-1]} {gpu_type} meets the limits: "
            f"{_nearest(answers, question)}"
        )
    return min(fits, key=lambda fit: (fit.gpus, fit.gpus_per_replica))


def _nearest(answers: Sequence[EstimateAnswer | Refused], question: SizeQuestion) -> str:
    """Return in words the latencies of the estimate that is closest to the limits, and a remedy.

    If no deployment has an estimate, return the reason why the largest has none.
    """
    estimates = [answer for answer in answers if isinstance(answer, EstimateAnswer)]
    if not estimates:
        refusals = [answer.refused for answer in answers if isinstance(answer, Refused)]
        return refusals[-1]

    def excess(answer: EstimateAnswer) -> float:
        """Return the larger ratio of a latency and its limit."""
        return max(answer.ttft_ms / question.ttft_ms, answer.tbt_ms / question.tbt_ms)

    nearest = min(estimates, key=excess)
    return (
        f"the nearest has TTFT {milliseconds(nearest.ttft_ms)}, "
        f"TPOT {milliseconds(nearest.tbt_ms)}. "
        "Loosen a limit, or choose another GPU or model."
    )


def _cheapest_for_rate(question: SizeQuestion, profiled: Collection[int]) -> QuickSize:
    """Return the fleet of equal replicas, without disaggregation, that needs the fewest GPUs.

    Tensor parallelism alone over a number of GPUs in ``profiled`` is left out. Raises PlannerError
    if no replica meets the limits.
    """
    gpu_type = catalogue.gpu_name(question.gpu)
    query = DeploymentQuery(
        model=question.model,
        isl=question.isl,
        osl=question.osl,
        ttft_ms=question.ttft_ms,
        tbt_ms=question.tbt_ms,
        rps=question.rps,
        gpus=(gpu_type,),
        precisions=(RELEASED,),
        disaggregated=False,
        percentile=PERCENTILE,
    )
    candidates = search_deployments(query).candidates
    if not candidates:
        # Other precisions of the weights may lower the quality of answers, so they come second.
        any_precision = query.model_copy(update={"precisions": ()})
        candidates = search_deployments(any_precision).candidates
    unprofiled = [row for row in candidates if row.tp < row.gpus or row.gpus not in profiled]
    cheapest = min(unprofiled, key=lambda row: row.fleet_gpus or 0, default=None)
    if cheapest is None:
        raise PlannerError(
            f"No replica of {question.model} on {gpu_type} meets the limits. Loosen a limit, or "
            "choose another GPU or model."
        )
    rps = question.rps or 0.0
    return QuickSize(
        gpus=cheapest.fleet_gpus or 0,
        replicas=cheapest.instances or 0,
        tp=cheapest.gpus,
        gpu=gpu_type,
        model=catalogue.model_name(question.model),
        rps_per_replica=cheapest.max_rps,
        ttft_ms=cheapest.ttft_ms,
        tbt_ms=cheapest.tbt_ms,
        tokens_per_s=rps * question.osl,
        expected_error=cheapest.expected_error,
        assumptions=(
            *_load_words(question),
            f"Weights are in {cheapest.precision}, the engine is {cheapest.engine}.",
            "Prefill and decode share GPUs.",
        ),
    )


def _load_words(question: SizeQuestion) -> tuple[str, ...]:
    """Return the assumptions about the load, and about the latencies at that load."""
    if question.users is not None:
        return f"On average {question.users:,} requests run or wait.", MEAN_TTFT
    return (
        f"{question.rps:g} requests arrive per second, at random moments (Poisson).",
        f"Limits hold for {PERCENTILE:g}% of requests.",
        "TTFT and TPOT are those of a fully loaded replica.",
    )
