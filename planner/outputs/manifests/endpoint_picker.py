"""Write llm-d's autoscaling: a ScaledObject with KEDA triggers on endpoint-picker signals.

Metrics and triggers are those of github.com/llm-d/llm-d, ``guides/workload-autoscaling`` and
``docs/architecture/autoscaling``.
"""

from planner.errors import PlannerError
from planner.outputs.manifests.common import (
    Document,
    Export,
    Fields,
    Target,
    pool_document,
    prometheus_trigger,
    scale_target,
)
from planner.outputs.object_names import LONGEST, name_of
from planner.outputs.plans import Pool, Rule, pool_text
from planner.policies.builtin.endpoint_picker import SIGNALS, EndpointPicker, ScalingWay
from simulation.policies import endpoint_picker as simulated
from simulation.policies.parts.hpa_behaviour import Way

API, KIND = "keda.sh/v1alpha1", "ScaledObject"
QUEUE, SATURATION = "llm_d_epp_flow_control_queue_size", "llm_d_epp_flow_control_pool_saturation"
RUNNING, INFLIGHT = "llm_d_epp_request_running", "llm_d_epp_inflight_tokens"
# Measured latency, and that of the picker's predictor, which is optional.
TTFT = "llm_d_epp_request_ttft_seconds", "llm_d_epp_request_predicted_ttft_seconds"
TBT = "llm_d_epp_request_streaming_tpot_seconds", "llm_d_epp_request_predicted_tpot_seconds"
MEMORY, PRODUCER = "vllm:kv_cache_usage_perc", "inflight-load-producer"
LABELS = (
    "Queries select by the labels model_name and inference_pool of llm-d's endpoint picker. The "
    "pool is assumed to have the deployment's name. Check both."
)
FLOW_CONTROL = "The queue and the saturation need the feature gate flowControl."
PREDICTED = (
    "The picker uses predicted latencies if its predictor runs. They react earlier than the "
    "measured latencies of the simulation."
)


def notes(policy: EndpointPicker) -> tuple[str, ...]:
    """Return notes on what the triggers of a policy assume."""
    by_signal = {"epp-queue": (FLOW_CONTROL,), "epp-queue-guard": (FLOW_CONTROL,),
                 "epp-saturation": (FLOW_CONTROL,),
                 "epp-latency": (PREDICTED,)}  # fmt: skip
    return LABELS, *by_signal.get(policy.name, ())


def scaled_object(export: Export, pool: Pool, target: Target, rule: Rule) -> Document:
    """Return the ScaledObject that scales ``target`` by the endpoint picker's metrics."""
    policy = rule.policy
    assert isinstance(policy, EndpointPicker)
    setting = simulated.SETTINGS[SIGNALS[policy.name]]
    config: Fields = {"behavior": {
        "scaleUp": _scaling_direction(policy.up, setting.up, policy.tolerance),
        "scaleDown": _scaling_direction(policy.down, setting.down, policy.tolerance),
    }}  # fmt: skip
    if len(pool.name) > LONGEST:
        config["name"] = name_of([pool.name])
    advanced: Fields = {"horizontalPodAutoscalerConfig": config}
    if formula := FORMULAS.get(policy.name):
        advanced["scalingModifiers"] = {
            "formula": formula(*policy.targets), "target": "1", "metricType": "AverageValue",
        }  # fmt: skip
    spec = {
        "scaleTargetRef": scale_target(target),
        "pollingInterval": round(policy.interval_s),
        "minReplicaCount": max(pool.least, policy.min_replicas),
        "maxReplicaCount": pool.ceiling,
        "advanced": advanced,
        "triggers": [
            prometheus_trigger(export, name, query, threshold)
            for name, query, threshold in _triggers(policy, pool, rule, export)
        ],
    }
    return pool_document(export, pool, API, KIND, "keda", spec)


def latency_formula(out_above: float, in_below: float) -> str:
    """Return the KEDA expression of the replicas that the latency signal requests.

    Its trigger ``saturation`` is the larger of TTFT / limit and TBT / limit. Replicas grow with it
    above ``out_above``, and shrink with it below ``in_below``.
    """
    # Replicas that are not ready yet will lower the saturation, so credit them.
    credit = "(readyReplicas > 0 && readyReplicas < replicas ? readyReplicas / replicas : 1)"
    return (
        f"saturation > {out_above:.6g} ? "
        f"replicas + ceil(replicas * (saturation * {credit} / {out_above:.6g} - 1)) : "
        f"saturation < {in_below:.6g} ? "
        f"replicas - floor(replicas * (1 - saturation / {in_below:.6g})) : replicas"
    )


def queue_guard_formula(queue: float, running: float) -> str:
    """Return the KEDA expression of replicas by queue; pending replicas count as available."""
    return (
        f"let queue_per_replica = {queue:.6g}; let running_per_replica = {running:.6g}; "
        "let demand = max(queue / queue_per_replica, running / running_per_replica); "
        "demand <= replicas ? demand : max(demand - (pending ?? 0), replicas)"
    )


FORMULAS = {"epp-latency": latency_formula, "epp-queue-guard": queue_guard_formula}


def _triggers(
    policy: EndpointPicker, pool: Pool, rule: Rule, export: Export
) -> list[tuple[str, str, float]]:
    """Return the triggers of a pool: name, Prometheus query and threshold of each.

    The name of the policy says which signal they follow: requests in flight, queue, saturation,
    tokens or (``epp-latency``) latency relative to its limit. If a namespace is given, queries are
    limited to it, since other namespaces may run the same model.
    """
    target, running_target = policy.targets
    namespace = export.options.namespace
    namespace_label = f'namespace="{namespace}",' if namespace else ""
    model_label = f'{namespace_label}model_name="{pool.model}"'
    deployment_label = f'{namespace_label}deployment="{pool.name}"'
    status = "kube_deployment_status_replicas"
    replicas = ("replicas", f"max({status}{{{deployment_label}}})", 1.0)
    running = f"sum({RUNNING}{{{model_label}}})"
    if policy.name == "epp-inflight":
        return [("running", running, target)]
    if policy.name.startswith("epp-queue"):
        queue = f"sum({QUEUE}{{{model_label}}})"
        pending = ("pending", f"max({status}_unavailable{{{deployment_label}}})", 1.0)
        guard = [pending, replicas] if policy.name == "epp-queue-guard" else []
        return [("queue", queue, target), ("running", running, running_target), *guard]
    if policy.name == "epp-saturation":
        saturation = f'max({SATURATION}{{{namespace_label}inference_pool="{pool.name}"}})'
        return [("saturation", saturation, target), ("running", running, running_target)]
    if policy.name == "epp-tokens":
        return _token_triggers(policy, pool, rule, namespace_label)
    return [
        ("saturation", _latency_query(policy, pool, rule, model_label), 1.0),
        replicas,
        ("readyReplicas", f"max({status}_ready{{{deployment_label}}})", 1.0),
    ]


def _token_triggers(
    policy: EndpointPicker, pool: Pool, rule: Rule, namespace_label: str
) -> list[tuple[str, str, float]]:
    """Return the triggers on seconds of prompts in flight (prefill) and KV memory (decode).

    An aggregated pool follows both. Raises PlannerError if the prefill speed is not known.
    """
    velocity = policy.prefill_tps or rule.computed_for(pool, simulated.VELOCITY)
    if velocity is None:
        raise PlannerError(f"The result has no {simulated.VELOCITY} of {pool_text(pool)}.")
    endpoints = f'{namespace_label}producer_name="{PRODUCER}",endpoint_name=~"{pool.name}-.*"'
    backlog = f"(sum({INFLIGHT}{{{endpoints}}}) / {velocity:.6g}) or vector(0)"
    memory = f'sum({MEMORY}{{{namespace_label}pod=~"{pool.name}-.*"}}) or vector(0)'
    prefill_target, decode_target = policy.targets
    by_role = {
        "prefill": ("prefill", backlog, prefill_target),
        "decode": ("decode", memory, decode_target),
    }
    return [by_role[pool.role]] if pool.role in by_role else [*by_role.values()]


def _latency_query(policy: EndpointPicker, pool: Pool, rule: Rule, labels: str) -> str:
    """Return the query of the larger of TTFT / limit and TBT / limit, averaged over MEAN_S."""
    limits_ms = ((TTFT, rule.computed_for(pool, simulated.TTFT_LIMIT) or policy.ttft_ms),
                 (TBT, rule.computed_for(pool, simulated.TBT_LIMIT) or policy.tbt_ms))  # fmt: skip
    ratios = [
        f"({_quantile(predicted, labels)} >= 0 or {_quantile(measured, labels)})"
        f" / {limit_ms / 1000:.6g} >= 0"
        for (measured, predicted), limit_ms in limits_ms
        if limit_ms
    ]
    # Series with equal labels would replace each other, so each ratio gets a label of its own.
    larger_ratio = " or ".join(
        f'label_replace({ratio}, "of", "{i}", "", "")' for i, ratio in enumerate(ratios)
    )
    capped = f"clamp_max(max({larger_ratio}) or vector(0), {simulated.CLAMP:g})"
    return f"avg_over_time({capped}[{simulated.MEAN_S:g}s:15s])"


def _quantile(metric: str, labels: str) -> str:
    """Return the query of a latency histogram's quantile over the last ``RATE_S`` seconds."""
    rate = f"rate({metric}_bucket{{{labels}}}[{simulated.RATE_S:g}s])"
    return f"histogram_quantile({simulated.QUANTILE}, sum by (le) ({rate}))"


def _scaling_direction(own: ScalingWay | None, published: Way, tolerance: float) -> Fields:
    """Return the rules of one scaling direction for the HPA's ``behavior``.

    ``own`` has the rules of the scenario for this direction; None: those of llm-d (``published``).
    """
    direction = published if own is None else own.rule()
    steps = (("Percent", direction.percent), ("Pods", direction.replicas))
    fields: Fields = {
        "stabilizationWindowSeconds": round(direction.window_s),
        "policies": [
            {"type": kind, "value": round(value), "periodSeconds": round(direction.period_s)}
            for kind, value in steps
            if value
        ],
    }
    if tolerance != EndpointPicker.model_fields["tolerance"].default:
        fields["tolerance"] = f"{tolerance:.6g}"
    return fields
