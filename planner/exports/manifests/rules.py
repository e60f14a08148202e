"""Metrics of a serving engine that stand for what a simulated autoscaler saw.

vLLM's names since 0.9.2, and NVIDIA's exporter of GPUs; both as Prometheus has them.
"""

from __future__ import annotations

from planner.errors import PlannerError
from planner.exports.plans import Rule

WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
MEMORY, GPU = "vllm:kv_cache_usage_perc", "DCGM_FI_DEV_GPU_UTIL"  # a share; per cent
# Of one pod, as an adapter of Prometheus has to offer it: its name there, and what it is.
POD_METRICS = {
    "memory": ("vllm_kv_cache_usage_perc", MEMORY),
    "gpu": ("gpu_utilization_share", f"{GPU} / 100"),
    "queue": ("vllm_num_requests_waiting", WAITING),
    "concurrency": ("vllm_num_requests_in_flight", f"{WAITING} + {RUNNING}"),
}
TOKENS = (
    "goes by KV tokens in flight, which no serving engine shows as a metric; export a policy on "
    "queue, concurrency or memory"
)


def query_of(rule: Rule, name: str) -> str:
    """What Prometheus is asked for the pods of a deployment, in total."""
    pods = f'{{pod=~"{name}-.*"}}'
    if rule.metric == "concurrency":
        return f"sum({WAITING}{pods}) + sum({RUNNING}{pods})"
    if rule.metric == "gpu":
        return f"sum({GPU}{pods}) / 100"
    if rule.metric in ("queue", "memory"):
        return f"sum({WAITING if rule.metric == 'queue' else MEMORY}{pods})"
    raise PlannerError(f"The policy {TOKENS}.")


def pod_metric(rule: Rule) -> tuple[str, str]:
    """The name an HPA asks for, and the series behind it."""
    if rule.metric not in POD_METRICS:
        raise PlannerError(f"The policy {TOKENS}.")
    return POD_METRICS[rule.metric]
