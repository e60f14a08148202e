"""Answer how many GPUs serve a number of users at once, without a trace or a scenario."""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.services.estimates import estimate_many

WIDTHS = (1, 2, 4, 8)  # GPUs of one replica that are compared
MAX_USERS = 1_000_000
MAX_PER_REPLICA = 1024  # users at once of one replica that are considered
STEADY_ROUNDS = 1000.0  # users ask again and again, not all at the same moment


def loads_of(users: int) -> list[int]:
    """Return the numbers of users per replica that numbers of replicas lead to, largest first."""
    least = max(1, ceil(users / MAX_PER_REPLICA))
    counts = {ceil(users / replicas) for replicas in range(least, min(users, least + 64) + 1)}
    power = 1
    while power < users:
        counts.add(min(power, MAX_PER_REPLICA))
        power *= 2
    return sorted((count for count in counts if count <= MAX_PER_REPLICA), reverse=True)


def quick_size(
    *,
    users: int,
    input_tokens: float,
    output_tokens: float,
    model: str,
    gpu: str,
    ttft_ms: float,
    tpot_ms: float,
) -> dict[str, Any]:
    """Return the fewest GPUs on which every user meets both limits in the mean.

    Raises PlannerError if no replica of up to the largest of WIDTHS meets them for one user.
    """
    if not 1 <= users <= MAX_USERS:
        raise PlannerError(f"users is {users:,}; give 1 to {MAX_USERS:,}.")
    name, gpu_type = catalogue.model_name(model), catalogue.gpu_name(gpu)
    loads = loads_of(users)
    rows: list[dict[str, Any]] = [
        {
            "model": name, "gpu": gpu_type, "tp": width, "isl": input_tokens, "osl": output_tokens,
            "concurrency": load, "rounds": STEADY_ROUNDS,
        }
        for width in WIDTHS
        for load in loads
    ]  # fmt: skip
    answers = estimate_many(rows)
    fits = [
        (ceil(users / row["concurrency"]) * int(row["tp"]), int(row["tp"]), answer)
        for row, answer in zip(rows, answers, strict=True)
        if "refused" not in answer and answer["ttft_ms"] <= ttft_ms and answer["tbt_ms"] <= tpot_ms
    ]
    if not fits:
        nearest = min(
            (answer for answer in answers if "refused" not in answer),
            key=lambda answer: max(answer["ttft_ms"] / ttft_ms, answer["tbt_ms"] / tpot_ms),
            default=None,
        )
        cause = (
            f"the nearest has TTFT {nearest['ttft_ms']:,.0f} ms, TPOT {nearest['tbt_ms']:,.1f} ms"
            if nearest
            else next(answer["refused"] for answer in answers)
        )
        raise PlannerError(
            f"No replica of {name} on 1 to {WIDTHS[-1]} {gpu_type} meets the limits: {cause}. "
            "Loosen a limit, or choose another GPU or model."
        )
    gpus, width, answer = min(fits, key=lambda fit: fit[:2])
    replicas = gpus // width
    return {
        "gpus": gpus,
        "replicas": replicas,
        "tp": width,
        "gpu": gpu_type,
        "model": name,
        "users_per_replica": users / replicas,
        "ttft_ms": answer["ttft_ms"],
        "tpot_ms": answer["tbt_ms"],
        "tokens_per_s": answer["tokens_per_s"] * replicas,
        "expected_error": answer["expected_error"],
        "assumptions": [
            f"{users:,} requests are in flight at any time, {input_tokens:g} tokens in and "
            f"{output_tokens:g} out.",
            "Limits hold for the mean of steady traffic. No replica is spare.",
            *answer["assumptions"],
        ],
    }
