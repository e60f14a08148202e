"""Answer how many GPUs serve users at once, or a rate, without a trace or a scenario."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from planner.domain.deployment_search.query import MOST_TOP, DeploymentQuery, price_of
from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.services.deployment_search import search_deployments
from planner.services.estimates import estimate_many

WIDTHS = (1, 2, 4, 8)  # GPUs of one replica that are compared
MAX_USERS = 1_000_000
MAX_PER_REPLICA = 1024  # users at once of one replica that are considered
STEADY_ROUNDS = 1000.0  # users ask again and again, not all at the same moment


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """A sizing question: either concurrent ``users``, or ``rps`` (requests per second)."""

    model: str
    gpu: str  # GPU type or cloud instance
    users: int | None = None
    rps: float | None = None
    isl: int = 1000  # input tokens
    osl: int = 500  # output tokens
    ttft_ms: float = 2000.0
    tbt_ms: float = 50.0
    cached_share: float = 0.0  # of input tokens that a prefix cache has

    def __post_init__(self) -> None:
        if (self.users is None) == (self.rps is None):
            raise PlannerError("Give users, the requests in flight, or rps, one of them.")
        if self.users is not None and not 1 <= self.users <= MAX_USERS:
            raise PlannerError(f"users is {self.users:,}. Give 1 to {MAX_USERS:,}.")
        for name in ("ttft_ms", "tbt_ms"):
            if not 0 < getattr(self, name) < float("inf"):
                raise PlannerError(f"{name} is {getattr(self, name):g}. Give a number above 0.")


def quick_size(question: SizeQuestion) -> dict[str, Any]:
    """Return the fewest GPUs that meet both latency limits, with cost and assumptions.

    Raises PlannerError if no replica meets the limits.
    """
    if question.users is not None:
        answer = _fewest_for_users(question)
    else:
        answer = (
            _fewest_for_cached_rate(question)
            if question.cached_share
            else _cheapest_for_rate(question)
        )
    price = price_of(answer["gpu"], {})
    lengths = f"Every request has {question.isl:,} input and {question.osl:,} output tokens."
    cost = answer["gpus"] * price.usd if isfinite(price.usd) else None
    return {
        **answer,
        "cost_usd_per_hour": cost,
        "tpot_ms": answer["tbt_ms"],
        "assumptions": [
            lengths,
            *(
                [f"A prefix cache has {question.cached_share:.0%} of the input tokens."]
                if question.cached_share
                else []
            ),
            f"Limits: TTFT {question.ttft_ms:,g} ms, TPOT {question.tbt_ms:,g} ms.",
            "No spare replica.",
            f"Price of a GPU-hour: {f'${price.usd:,.2f}, ' * (cost is not None)}"
            f"{price.provenance.source} ({price.provenance.kind}).",
            *answer["assumptions"],
        ],
    }


def loads_of(users: int) -> list[int]:
    """Return loads to try: users per replica for each number of replicas, largest first.

    Beyond 64 more replicas than the fewest, only powers of two remain, which saves estimates.
    """
    fewest_replicas = max(1, ceil(users / MAX_PER_REPLICA))
    counts = {
        ceil(users / replicas)
        for replicas in range(fewest_replicas, min(users, fewest_replicas + 64) + 1)
    }
    power = 1
    while power < users:
        counts.add(min(power, MAX_PER_REPLICA))
        power *= 2
    return sorted((count for count in counts if count <= MAX_PER_REPLICA), reverse=True)


def _fewest_for_users(question: SizeQuestion) -> dict[str, Any]:
    """Return the fewest GPUs on which the mean latencies of ``users`` meet both limits."""
    users = question.users or 1
    replicas, answer = _fewest_gpus(question, loads_of(users), lambda load, _: users / load)
    return {
        **answer,
        "users_per_replica": users / replicas,
        "tokens_per_s": answer["tokens_per_s"] * replicas,
        "assumptions": [f"{users:,} requests are in flight at any time.", *answer["assumptions"]],
    }


def _fewest_for_cached_rate(question: SizeQuestion) -> dict[str, Any]:
    """Return the fewest GPUs for a rate of requests whose prompts are partly cached."""
    rps, loads = question.rps or 0.0, loads_of(MAX_PER_REPLICA)

    def wanted(_: int, answer: dict[str, Any]) -> float:
        return rps * question.osl / float(answer["tokens_per_s"])

    _, answer = _fewest_gpus(question, loads, wanted)
    return {
        **answer,
        "rps_per_replica": answer["tokens_per_s"] / question.osl,
        "tokens_per_s": rps * question.osl,
        "assumptions": [f"{rps:g} requests arrive per second.", *answer["assumptions"]],
    }


def _fewest_gpus(
    question: SizeQuestion,
    loads: Sequence[int],
    replicas_needed: Callable[[int, dict[str, Any]], float],
) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas and the estimate of one, for the fewest GPUs.

    Mean latencies meet both limits. ``replicas_needed`` returns the replicas for a number of
    requests in flight per replica and its estimate.
    """
    name, gpu_type = catalogue.model_name(question.model), catalogue.gpu_name(question.gpu)
    rows: list[dict[str, Any]] = [
        {
            "model": name, "gpu": gpu_type, "tp": width, "isl": question.isl, "osl": question.osl,
            "concurrency": load, "rounds": STEADY_ROUNDS, "prefix_hit_rate": question.cached_share,
        }
        for width in WIDTHS
        for load in loads
    ]  # fmt: skip
    answers = estimate_many(rows)
    fits = [
        (ceil(replicas_needed(row["concurrency"], answer)) * int(row["tp"]), int(row["tp"]), answer)
        for row, answer in zip(rows, answers, strict=True)
        if "refused" not in answer
        and answer["ttft_ms"] <= question.ttft_ms
        and answer["tbt_ms"] <= question.tbt_ms
    ]
    if not fits:
        raise PlannerError(
            f"No replica of {name} on 1 to {WIDTHS[-1]} {gpu_type} meets the limits: "
            f"{_nearest(answers, question)}. Loosen a limit, or choose another GPU or model."
        )
    gpus, width, answer = min(fits, key=lambda fit: fit[:2])
    figures = ("ttft_ms", "tbt_ms", "tokens_per_s", "expected_error")
    return gpus // width, {
        "gpus": gpus,
        "replicas": gpus // width,
        "tp": width,
        "gpu": gpu_type,
        "model": name,
        **{figure: answer[figure] for figure in figures},
        "assumptions": ["Limits hold for the mean of steady traffic.", *answer["assumptions"]],
    }


def _nearest(answers: Sequence[dict[str, Any]], question: SizeQuestion) -> str:
    """Return the figures of the deployment that is closest to the latency limits, as text."""
    nearest = min(
        (answer for answer in answers if "refused" not in answer),
        key=lambda a: max(a["ttft_ms"] / question.ttft_ms, a["tbt_ms"] / question.tbt_ms),
        default=None,
    )
    if nearest is None:
        return str(next(answer["refused"] for answer in answers))
    return f"the nearest has TTFT {nearest['ttft_ms']:,.0f} ms, TPOT {nearest['tbt_ms']:,.1f} ms"


def _cheapest_for_rate(question: SizeQuestion) -> dict[str, Any]:
    """Return the fleet of equal replicas, without disaggregation, that needs the fewest GPUs."""
    gpu_type = catalogue.gpu_name(question.gpu)
    query = DeploymentQuery(
        model=question.model,
        isl=question.isl,
        osl=question.osl,
        ttft_ms=question.ttft_ms,
        tbt_ms=question.tbt_ms,
        rps=question.rps,
        gpus=(gpu_type,),
        top=MOST_TOP,
    )
    candidates = search_deployments(query)["candidates"]
    cheapest = min(
        (candidate for candidate in candidates if candidate["mode"] == "agg"),
        key=lambda candidate: candidate["fleet_gpus"],
        default=None,
    )
    if cheapest is None:
        raise PlannerError(
            f"No replica of {question.model} on {gpu_type} meets the limits. Loosen a limit, or "
            "choose another GPU or model."
        )
    rps = question.rps or 0.0
    return {
        "gpus": cheapest["fleet_gpus"],
        "replicas": cheapest["instances"],
        "tp": cheapest["gpus"],
        "gpu": gpu_type,
        "model": catalogue.model_name(question.model),
        "rps_per_replica": cheapest["max_rps"],
        "ttft_ms": cheapest["ttft_ms"],
        "tbt_ms": cheapest["tbt_ms"],
        "tokens_per_s": rps * question.osl,
        "expected_error": cheapest["expected_error"],
        "assumptions": [
            f"{rps:g} requests arrive per second, at random moments (Poisson).",
            f"Limits hold for {query.percentile:g}% of requests.",
            "TTFT and TPOT are those of a fully loaded replica.",
            f"Weights are in {cheapest['precision']}, the engine is {cheapest['engine']}.",
            "Prefill and decode share GPUs.",
        ],
    }
