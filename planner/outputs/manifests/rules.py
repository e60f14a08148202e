"""Map the metrics of simulated autoscalers to metrics of a serving engine.

Names are those of vLLM since 0.9.2 and of NVIDIA's DCGM exporter, as in Prometheus.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import PlannerError
from planner.outputs.plan_guard import Guard
from planner.outputs.plans import Rule
from planner.outputs.pools import Pool
from simulation.policies.endpoint_picker import VELOCITY
from simulation.policies.parts.guard import AIM, LATE_S, LEAST_ALLOWED, LEAST_LOAD, MOST_LATE
from simulation.policies.parts.stability import PILED_UP
from simulation.policies.token_velocity import DECODE_BATCH

WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
PROMPTS, OUTPUTS = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
# Upper ends of the buckets of these histograms in seconds (vLLM, ``vllm/v1/metrics``)
BUCKETS_S = {
    TTFT: (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
           10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    TPOT: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
           20.0, 40.0, 80.0),
}  # fmt: skip
MEMORY, GPU = "vllm:kv_cache_usage_perc", "DCGM_FI_DEV_GPU_UTIL"  # a share; a percentage
# Metrics of one pod that a Prometheus adapter must offer: name and expression.
POD_METRICS = {
    "memory": ("vllm_kv_cache_usage_perc", MEMORY),
    "gpu": ("gpu_utilization_share", f"{GPU} / 100"),
    "queue": ("vllm_num_requests_waiting", WAITING),
    "concurrency": ("vllm_num_requests_in_flight", f"{WAITING} + {RUNNING}"),
}
CHECK_S = 15  # interval of load checks in the simulation
RATE_S = 60  # window of rates: four scrapes of 15 s

NOT_EXPORTED = (
    "scales on KV tokens in flight, which no serving engine exports. Export a policy on "
    "queue, concurrency or memory"
)


def query_of(rule: Rule, deployment: str) -> str:
    """Return the PromQL query of a rule's metric, summed over the pods of ``deployment``.

    Raises PlannerError if no serving engine offers the metric.
    """
    pods = _pods_matcher(deployment)
    match rule.metric:
        case "concurrency":
            return f"sum({WAITING}{pods}) + sum({RUNNING}{pods})"
        case "queue":
            return f"sum({WAITING}{pods})"
        case "memory":
            return f"sum({MEMORY}{pods})"
        case "gpu":
            return f"sum({GPU}{pods}) / 100"
    raise PlannerError(f"The policy {NOT_EXPORTED}.")


def _pods_matcher(deployment: str) -> str:
    """Return the PromQL label matcher of a deployment's pods, whose names begin with its name."""
    return f'{{pod=~"{deployment}-.*"}}'


def velocity_query(pool: Pool, rule: Rule, target_share: float) -> tuple[str, float]:
    """Return (PromQL query of a pool's load, target load per replica) for ``token-velocity``.

    The load of prefill is prompt tokens/s, that of decode requests in flight. ``target_share`` is
    the share of a replica's capacity to use. Raises PlannerError if the run computed no capacity.
    """
    pods = _pods_matcher(pool.name)
    capacity_name = VELOCITY if pool.role == "prefill" else DECODE_BATCH
    capacity = rule.simulated_value(pool, capacity_name)
    if capacity is None:
        raise PlannerError(f"The result has no {capacity_name} of {pool.name}.")
    if pool.role == "prefill":
        return f"sum(rate({PROMPTS}{pods}[{RATE_S}s]))", capacity * target_share
    return f"sum({WAITING}{pods}) + sum({RUNNING}{pods})", capacity * target_share


def pod_metric(rule: Rule) -> tuple[str, str]:
    """Return name and PromQL of a rule's pod metric; raise PlannerError if no engine has it."""
    if rule.metric not in POD_METRICS:
        raise PlannerError(f"The policy {NOT_EXPORTED}.")
    return POD_METRICS[rule.metric]


@dataclass(frozen=True, slots=True)
class Load:
    """A load metric of a guard: ``query`` / ``threshold`` replicas, or no result if enough."""

    name: str
    metric: str  # name under which a Prometheus adapter offers the query
    query: str
    threshold: float  # per replica; 1 if the query counts replicas


def loads_of(pool: Pool, pods: str) -> Iterator[Load]:
    """Yield the load metrics of a pool's guard; nothing if it has no guard.

    ``pods`` is the PromQL label matcher of its pods. Replicas are added if the load exceeds the
    target for ``scale_up_after_s`` (minimum over that time). They are kept for ``keep_added_s``
    (maximum over that time).
    """
    guard = pool.guard
    if guard is None:
        return
    # The load in tokens/s.
    staffing = guard.staffing(pool.min_replicas, pool.max_replicas)
    for load in _token_loads(guard, pods, staffing.scale):
        yield _load_in_replicas(load, staffing.loss, pool)
    # Requests pile up if the running replicas hold more than PILED_UP times their usual number.
    usual_in_flight = guard.requests_in_flight * staffing.scale  # per replica
    max_in_flight = max(round(PILED_UP * usual_in_flight), 1)
    piled_up = _piled_up_query(guard, pods, staffing.loss, max_in_flight)
    metric = f"headroom_guard_in_flight_over_{max_in_flight}"
    query = _maximum_over_time(piled_up, guard)
    yield _load_in_replicas(Load("piled-up", metric, query, usual_in_flight), staffing.loss, pool)
    # Late requests, if the pool has a limit and a share that may be late.
    limits_s = ((TTFT, guard.ttft_limit_s), (TPOT, guard.tpot_limit_s))
    late = " + ".join(
        _late_share(latency, limit_s, pods) for latency, limit_s in limits_s if np.isfinite(limit_s)
    )
    if late and np.isfinite(guard.allowed_late_share):
        replicas = _replicas_for_late(guard, late, pods, staffing.scale)
        # Requests that pile up are late for another reason, which the load above covers. "> 0"
        # drops the 0 / 0 without requests.
        was_piled_up = f"max_over_time({piled_up}[{LATE_S:g}s:{CHECK_S}s])"
        counted = f"({replicas} > 0 unless {was_piled_up})"
        metric = _metric_name(f"headroom_guard_replicas_by_late_{pool.name}")
        yield Load("late", metric, _maximum_over_time(counted, guard), threshold=1.0)


def _piled_up_query(guard: Guard, pods: str, loss: float, most: int) -> str:
    """Return the query of the requests in flight, without a result up to ``most`` per replica.

    ``loss`` is that of small pools (``Staffing``).
    """
    running = f"count({RUNNING}{{{pods}}})"  # replicas: each has one such series
    if loss:
        running = f"({running} - {loss:.6g} * sqrt({running}))"
    in_flight = f"(sum({WAITING}{{{pods}}}) + sum({RUNNING}{{{pods}}}))"
    lasting = _minimum_over_time(in_flight, guard)
    # In PromQL, ">" returns its left side, the requests in flight, or nothing if it is not larger.
    return f"({lasting} > {most} * {running})"


def _metric_name(text: str) -> str:
    """Return ``text`` as a metric name, which has only letters, digits and underscores."""
    return re.sub(r"\W+", "_", text)


def _token_loads(guard: Guard, pods: str, scale: float) -> Iterator[Load]:
    """Yield the loads by prompt and output tokens/s, for the work that the pool does.

    ``scale`` is the capacity of a replica relative to one in a large pool.
    """
    for name, metric, counter, tokens_per_s in (
        ("prompts", "headroom_guard_prompt_tokens", PROMPTS, guard.prompt_tokens_per_s),
        ("outputs", "headroom_guard_output_tokens", OUTPUTS, guard.output_tokens_per_s),
    ):
        if np.isfinite(tokens_per_s):
            rate = f"sum(rate({counter}{{{pods}}}[{RATE_S}s]))"
            lasting = _maximum_over_time(_minimum_over_time(rate, guard), guard)
            yield Load(name, metric, lasting, threshold=tokens_per_s * scale)


def _late_share(metric: str, limit_s: float, pods: str) -> str:
    """Return the query of the share of requests over a limit in the last LATE_S seconds.

    ``metric`` is a latency histogram. In the bucket that contains ``limit_s``, values are assumed
    evenly spread, as ``histogram_quantile`` assumes.
    """
    bucket_ends_s = BUCKETS_S[metric]
    bucket = min(bisect_left(bucket_ends_s, limit_s), len(bucket_ends_s) - 1)
    high_s = bucket_ends_s[bucket]
    low_s = bucket_ends_s[bucket - 1] if bucket else 0.0
    weight = min(1.0, (limit_s - low_s) / (high_s - low_s))
    # Buckets are cumulative, so requests within the limit are interpolated between both ends. An
    # end of weight 0, or at 0 s, has no requests to add.
    within_limit = [
        f'{end_weight:.6g} * sum(rate({metric}_bucket{{{pods},le="{end_s}"}}[{LATE_S:g}s]))'
        for end_weight, end_s in ((weight, high_s), (1 - weight, low_s))
        if end_weight and end_s
    ]
    all_requests = f"sum(rate({metric}_count{{{pods}}}[{LATE_S:g}s]))"
    return f"1 - ({' + '.join(within_limit)}) / {all_requests}"


def _replicas_for_late(guard: Guard, late: str, pods: str, scale: float) -> str:
    """Return the query of the replicas that late requests require (``guard._instances_for_late``).

    ``late`` is the query of the share of late requests. Replicas per token/s in the last LATE_S
    seconds are multiplied by the square root of late share / (AIM * allowed share). ``scale`` is
    the capacity of a replica relative to one in a large pool.
    """
    counter, capacity = PROMPTS, guard.prompt_tokens_per_s
    if not np.isfinite(capacity):  # a pool of decode
        counter, capacity = OUTPUTS, guard.output_tokens_per_s
    tokens_per_s = f"sum(rate({counter}{{{pods}}}[{RATE_S}s]))"
    mean_tokens_per_s = f"sum(rate({counter}{{{pods}}}[{LATE_S:g}s]))"
    mean_replicas = f"avg_over_time(count({RUNNING}{{{pods}}})[{LATE_S:g}s:{CHECK_S}s])"
    aimed_share = AIM * max(guard.allowed_late_share, LEAST_ALLOWED)
    excess = f"clamp(({late}) / {aimed_share:.6g}, 0, {MOST_LATE:g})"
    replicas_per_token = f"{mean_replicas} / {mean_tokens_per_s} * sqrt({excess})"
    max_per_token = 1 / (LEAST_LOAD * capacity * scale)
    lasting_tokens_per_s = _minimum_over_time(tokens_per_s, guard)
    return f"{lasting_tokens_per_s} * clamp_max({replicas_per_token}, {max_per_token:.6g})"


def _load_in_replicas(load: Load, loss: float, pool: Pool) -> Load:
    """Return a load whose query counts replicas, because small pools have less capacity each.

    The query solves n - loss * sqrt(n) = load / threshold for n (square-root staffing). Without a
    ``loss``, the load is returned as it is.
    """
    if not loss:
        return load
    half = loss / 2
    load_ratio = f"({load.query} > 0) / {load.threshold:.6g}"
    replicas = f"({half:.6g} + sqrt({half * half:.6g} + {load_ratio})) ^ 2"
    metric = _metric_name(f"headroom_guard_replicas_by_{load.name}_{pool.name}")
    return replace(load, metric=metric, query=replicas, threshold=1.0)


def _minimum_over_time(query: str, guard: Guard) -> str:
    """Return the query of the minimum over ``scale_up_after_s``, for which a load must last."""
    return f"min_over_time({query}[{max(guard.scale_up_after_s, CHECK_S):.0f}s:{CHECK_S}s])"


def _maximum_over_time(query: str, guard: Guard) -> str:
    """Return the query of the maximum over ``keep_added_s``, for which added replicas are kept."""
    return f"max_over_time({query}[{max(guard.keep_added_s, CHECK_S):.0f}s:{CHECK_S}s])"
