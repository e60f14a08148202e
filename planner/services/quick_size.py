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
    built_in = catalogue.profiles()
    profiles = [built_in[key] for w in WIDTHS if (key := (name, gpu_type, w)) in built_in]
    sizes = [size for profile in profiles if (size := _size_on_profile(question, profile))]
    by_mean = question.users is not None or question.cached_share
    estimated_size = _fewest_by_estimates if by_mean else _cheapest_for_rate
    try:
        sizes.append(estimated_size(question, {profile.tp for profile in profiles}))
    except PlannerError:
        if not sizes:
            raise
    size = min(sizes, key=lambda size: (size.gpus, size.tp))
    price = price_of(size.gpu, {})
    known, offers = isfinite(price.usd), price.provenance.source
    price_basis = f"A GPU-hour costs ${price.usd:,.2f} ({offers})." if known else f"Cost: {offers}."
    replicas = size.replicas + SPARE_REPLICAS
    gpus = replicas * size.tp
    assumptions = [f"Every request has {question.isl:,} input and {question.osl:,} output tokens."]
    if question.cached_share:
        assumptions.append(f"A prefix cache has {question.cached_share:.0%} of the input tokens.")
    assumptions += [
        f"Limits: TTFT {milliseconds(question.ttft_ms)}, TPOT {milliseconds(question.tbt_ms)}.",
        price_basis,
    ]
    return replace(
        size,
        cost_usd_per_hour=size.gpus * price.usd if known else None,
        recommended_replicas=replicas,
        recommended_gpus=gpus,
        recommended_cost_usd_per_hour=gpus * price.usd if known else None,
        tpot_ms=size.tbt_ms,
        price_basis=price_basis,
        assumptions=(*assumptions, *size.assumptions),
    )


def _size_on_profile(question: SizeQuestion, profile: Profile) -> QuickSize | None:
    """Return the fewest replicas with the speed of ``profile``; None if it misses the limits."""
    isl, osl = np.array([question.isl]), np.array([question.osl])
    cached = CachedTokens(np.rint(question.cached_share * isl)) if question.cached_share else None
    tier = Tier("limits", question.ttft_ms / 1e3, question.tbt_ms / 1e3, None, PERCENTILE / 100)
    rps = question.rps or 0.0
    try:
        if question.users is not None:
            work = Workload(isl, osl, cached=cached)
            replicas, at = _replicas_for_users(question, profile, work)
            rps, ttft_s, tbt_s, each_rps = replicas * at.rate, at.ttft.mean, at.tbt.mean, at.rate
        else:
            curve = pool_curve(SizingCase(profile, (isl, osl), tier, blocks=cached))
            replicas = fewest_instances(curve.max_rps, rps)
            ttft_s, tbt_s = curve.alone.ttft_s, curve.alone.tbt_s
            each_rps = curve.alone.max_rps
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
        rps_per_replica=each_rps if question.rps else None,
    )  # fmt: skip


def _replicas_for_users(
    question: SizeQuestion, profile: Profile, work: Workload
) -> tuple[int, Evaluation]:
    """Return the fewest replicas on which mean latencies are within the limits, and one of them.

    Each has an equal share of the users in flight on average, with Poisson arrivals. Raises
    SimulationError if no replica meets the limits.
    """
    users, ttft_s, tbt_s = question.users or 0, question.ttft_ms / 1e3, question.tbt_ms / 1e3
    saturated = saturated_rps(profile, work)

    def largest(holds: Callable[[Evaluation], bool]) -> Evaluation:
        """Return the evaluation at the largest rate for which ``holds`` is True."""
        rates = rates_around_limit(
            lambda rate: holds(evaluate_pool(profile, work.at(rate))), saturated / 2,
            step=4.0, lowest=TRICKLE * saturated, highest=NEARLY * saturated, precision=1e-3,
        )  # fmt: skip
        if rates is None:
            raise SimulationError(f"No rate of {profile.model} meets the limits.")
        return evaluate_pool(profile, work.at(rates[0]))

    most = largest(lambda at: at.ttft.mean <= ttft_s and at.tbt.mean <= tbt_s)
    replicas = ceil(users / min(most.rate * most.e2e.mean, users))
    each = users / replicas
    return replicas, largest(lambda at: at.rate * at.e2e.mean <= each)


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

    No replica has a number of GPUs in ``profiled``. The load is of users at once, or a rate of
    requests whose prompts are partly cached. Raises PlannerError if no replica meets the limits.
    """
    fit = _fewest_gpus(question, profiled)
    replicas, answer, rps = fit.gpus // fit.width, fit.answer, question.rps or 0.0
    load = f"{rps:g} requests arrive per second."
    if question.users is not None:
        load = f"{question.users:,} requests run or wait at any time."
    return QuickSize(
        gpus=fit.gpus,
        replicas=replicas,
        tp=fit.width,
        gpu=answer.gpu,
        model=answer.model,
        ttft_ms=answer.ttft_ms,
        tbt_ms=answer.tbt_ms,
        tokens_per_s=rps * question.osl or answer.tokens_per_s * replicas,
        expected_error=answer.expected_error,
        assumptions=(load, MEAN_TTFT, *answer.assumptions),
        users_per_replica=question.users / replicas if question.users else None,
        rps_per_replica=answer.tokens_per_s / question.osl if rps else None,
    )


class _Fit(NamedTuple):
    """Replicas that meet the limits; fewer GPUs are better, then a smaller width."""

    gpus: int  # of all replicas
    width: int  # GPUs of one replica
    answer: EstimateAnswer


def _fewest_gpus(question: SizeQuestion, profiled: Collection[int]) -> _Fit:
    """Return the replicas with the fewest GPUs; raise PlannerError if none meets the limits."""
    name, gpu_type = catalogue.model_name(question.model), catalogue.gpu_name(question.gpu)
    lengths = {"isl": question.isl, "osl": question.osl, "prefix_hit_rate": question.cached_share}
    replica = {"model": name, "gpu": gpu_type, "rounds": STEADY_ROUNDS, **lengths}
    rows: list[dict[str, Any]] = [
        {**replica, "tp": width, "concurrency": load}
        for width in WIDTHS
        if width not in profiled
        for load in loads_of(question.users or MAX_PER_REPLICA)
    ]
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
    return min(fits, key=lambda fit: fit[:2])


def _nearest(answers: Sequence[EstimateAnswer | Refused], question: SizeQuestion) -> str:
    """Return in words the latencies of the estimate that is closest to the limits, and a remedy.

    If no deployment has an estimate, return the reason why the largest has none.
    """
    nearest = min(
        (answer for answer in answers if isinstance(answer, EstimateAnswer)),
        key=lambda a: max(a.ttft_ms / question.ttft_ms, a.tbt_ms / question.tbt_ms),
        default=None,
    )
    if nearest is None:
        return next(answer.refused for answer in reversed(answers) if isinstance(answer, Refused))
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
    left = [row for row in candidates if row.tp < row.gpus or row.gpus not in profiled]
    cheapest = min(left, key=lambda row: row.fleet_gpus or 0, default=None)
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
