"""Write llm-d's autoscaling: a ScaledObject with KEDA triggers on endpoint-picker signals.

Metrics and triggers are those of github.com/llm-d/llm-d, ``guides/workload-autoscaling`` and
``docs/architecture/autoscaling``.
"""

from typing import NamedTuple

from planner.errors import PlannerError
from planner.outputs.manifests import common
from planner.outputs.object_names import LONGEST, name_of
from planner.outputs.plans import Rule, pool_text
from planner.outputs.pools import Pool
from planner.policies.builtin.endpoint_picker import SIGNALS, EndpointPicker, ScalingWay
from simulation.policies import endpoint_picker as simulated
from simulation.policies.parts.hpa_behaviour import DirectionLimits

API, KIND = "keda.sh/v1alpha1", "ScaledObject"
QUEUE, SATURATION = "llm_d_epp_flow_control_queue_size", "llm_d_epp_flow_control_pool_saturation"
RUNNING, INFLIGHT = "llm_d_epp_request_running", "llm_d_epp_inflight_tokens"
# Measured latency, and that of the picker's predictor, which is optional.
TTFT = "llm_d_epp_request_ttft_seconds", "llm_d_epp_request_predicted_ttft_seconds"
TBT = "llm_d_epp_request_streaming_tpot_seconds", "llm_d_epp_request_predicted_tpot_seconds"
MEMORY, PRODUCER = "vllm:kv_cache_usage_perc", "inflight-load-producer"
STATUS = "kube_deployment_status_replicas"
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
    if policy.name in ("epp-queue", "epp-queue-guard", "epp-saturation"):
        return LABELS, FLOW_CONTROL
    if policy.name == "epp-latency":
        return LABELS, PREDICTED
    return (LABELS,)


def scaled_object(
    export: common.Export, pool: Pool, target: common.Target, rule: Rule
) -> common.Document:
    """Return the ScaledObject that scales ``target`` by the endpoint picker's metrics."""
    policy = rule.policy
    assert isinstance(policy, EndpointPicker)
    published = simulated.SETTINGS[SIGNALS[policy.name]]
    hpa_config: common.Fields = {"behavior": {
        "scaleUp": _scaling_direction(policy.up, published.up, policy.tolerance),
        "scaleDown": _scaling_direction(policy.down, published.down, policy.tolerance),
    }}  # fmt: skip
    if len(pool.name) > LONGEST:
        hpa_config["name"] = name_of([pool.name])
    advanced: common.Fields = {"horizontalPodAutoscalerConfig": hpa_config}
    if policy.name in FORMULAS:
        formula = FORMULAS[policy.name](*policy.targets)
        advanced["scalingModifiers"] = {
            "formula": formula, "target": "1", "metricType": "AverageValue",
        }  # fmt: skip
    triggers = _triggers(policy, pool, rule, export.options.namespace)
    spec = {
        "scaleTargetRef": common.scale_target(target),
        "pollingInterval": round(policy.interval_s),
        "minReplicaCount": max(pool.min_replicas, policy.min_replicas),
        "maxReplicaCount": pool.max_with_guard,
        "advanced": advanced,
        "triggers": [common.prometheus_trigger(export, *trigger) for trigger in triggers],
    }
    return common.pool_document(export, pool, API, KIND, "keda", spec)


def latency_formula(out_above: float, in_below: float) -> str:
    """Return the KEDA expression of the replicas that the latency signal requests.

    Its trigger ``saturation`` is the larger of TTFT / limit and TBT / limit. Replicas grow with it
    above ``out_above``, and shrink with it below ``in_below``.
    """
    # Replicas that are not ready yet will lower the saturation, so credit them.
    credit = "(readyReplicas > 0 && readyReplicas < replicas ? readyReplicas / replicas : 1)"
    scaled_out = f"replicas + ceil(replicas * (saturation * {credit} / {out_above:.6g} - 1))"
    scaled_in = f"replicas - floor(replicas * (1 - saturation / {in_below:.6g}))"
    return (
        f"saturation > {out_above:.6g} ? {scaled_out} : "
        f"saturation < {in_below:.6g} ? {scaled_in} : replicas"
    )


def queue_guard_formula(queue: float, running: float) -> str:
    """Return the KEDA expression of replicas by queue; pending replicas count as available."""
    return (
        f"let queue_per_replica = {queue:.6g}; let running_per_replica = {running:.6g}; "
        "let demand = max(queue / queue_per_replica, running / running_per_replica); "
        "demand <= replicas ? demand : max(demand - (pending ?? 0), replicas)"
    )


FORMULAS = {"epp-latency": latency_formula, "epp-queue-guard": queue_guard_formula}


class Trigger(NamedTuple):
    """A trigger that requests ``query / threshold`` replicas; formulas use its ``name``."""

    name: str
    query: str  # PromQL
    threshold: float = 1.0


def _triggers(
    policy: EndpointPicker, pool: Pool, rule: Rule, namespace: str | None
) -> list[Trigger]:
    """Return the triggers of a pool.

    The name of the policy says which signal they follow: requests in flight, queue, saturation,
    tokens or (``epp-latency``) latency relative to its limit. With a ``namespace``, queries are
    limited to it, since other namespaces may run the same model.
    """
    target, running_target = policy.targets
    namespace_label = f'namespace="{namespace}",' if namespace else ""
    model_label = f'{namespace_label}model_name="{pool.model}"'
    of_deployment = f'{{{namespace_label}deployment="{pool.name}"}}'
    replicas = Trigger("replicas", f"max({STATUS}{of_deployment})")
    running = Trigger("running", f"sum({RUNNING}{{{model_label}}})", running_target)
    queue = Trigger("queue", f"sum({QUEUE}{{{model_label}}})", target)
    match policy.name:
        case "epp-inflight":
            return [running._replace(threshold=target)]
        case "epp-queue":
            return [queue, running]
        case "epp-queue-guard":
            return [
                queue,
                running,
                Trigger("pending", f"max({STATUS}_unavailable{of_deployment})"),
                replicas,
            ]
        case "epp-saturation":
            saturation = f'max({SATURATION}{{{namespace_label}inference_pool="{pool.name}"}})'
            return [Trigger("saturation", saturation, target), running]
        case "epp-tokens":
            return _token_triggers(policy, pool, rule, namespace_label)
    # epp-latency
    return [
        Trigger("saturation", _latency_query(policy, pool, rule, model_label)),
        replicas,
        Trigger("readyReplicas", f"max({STATUS}_ready{of_deployment})"),
    ]


def _token_triggers(
    policy: EndpointPicker, pool: Pool, rule: Rule, namespace_label: str
) -> list[Trigger]:
    """Return the triggers on seconds of prompts in flight (prefill) and KV memory (decode).

    An aggregated pool follows both. Raises PlannerError if the prefill speed is not known.
    """
    tokens_per_s = policy.prefill_tps or rule.simulated_value(pool, simulated.VELOCITY)
    if tokens_per_s is None:
        raise PlannerError(f"The result has no {simulated.VELOCITY} of {pool_text(pool)}.")
    endpoints = f'{namespace_label}producer_name="{PRODUCER}",endpoint_name=~"{pool.name}-.*"'
    pods = f'{namespace_label}pod=~"{pool.name}-.*"'
    prefill_target, decode_target = policy.targets
    prefill = Trigger(
        "prefill",
        f"(sum({INFLIGHT}{{{endpoints}}}) / {tokens_per_s:.6g}) or vector(0)",
        prefill_target,
    )
    decode = Trigger("decode", f"sum({MEMORY}{{{pods}}}) or vector(0)", decode_target)
    if pool.role == "prefill":
        return [prefill]
    if pool.role == "decode":
        return [decode]
    return [prefill, decode]


def _latency_query(policy: EndpointPicker, pool: Pool, rule: Rule, labels: str) -> str:
    """Return the query of the larger of TTFT / limit and TBT / limit, averaged over MEAN_S."""
    ttft_limit_ms = rule.simulated_value(pool, simulated.TTFT_LIMIT) or policy.ttft_ms
    tbt_limit_ms = rule.simulated_value(pool, simulated.TBT_LIMIT) or policy.tbt_ms
    ratios = []
    for (measured, predicted), limit_ms in ((TTFT, ttft_limit_ms), (TBT, tbt_limit_ms)):
        if limit_ms:
            latency = f"({_quantile(predicted, labels)} >= 0 or {_quantile(measured, labels)})"
            ratios.append(f"{latency} / {limit_ms / 1000:.6g} >= 0")
    # Series with equal labels would replace each other, so each ratio gets a label of its own.
    labelled = [f'label_replace({ratio}, "of", "{i}", "", "")' for i, ratio in enumerate(ratios)]
    capped = f"clamp_max(max({' or '.join(labelled)}) or vector(0), {simulated.MAX_SATURATION:g})"
    return f"avg_over_time({capped}[{simulated.MEAN_WINDOW_S:g}s:15s])"


def _quantile(metric: str, labels: str) -> str:
    """Return the query of a latency histogram's quantile over the last ``RATE_S`` seconds."""
    rate = f"rate({metric}_bucket{{{labels}}}[{simulated.RATE_WINDOW_S:g}s])"
    return f"histogram_quantile({simulated.PERCENTILE}, sum by (le) ({rate}))"


def _scaling_direction(
    own: ScalingWay | None, published: DirectionLimits, tolerance: float
) -> common.Fields:
    """Return the rules of one scaling direction for the HPA's ``behavior``.

    ``own`` has the rules of the scenario for this direction; None: those of llm-d (``published``).
    """
    rules = published if own is None else own.rule()
    policies = [
        {"type": kind, "value": round(largest_step), "periodSeconds": round(rules.period_s)}
        for kind, largest_step in (("Percent", rules.percent), ("Pods", rules.replicas))
        if largest_step
    ]
    fields: common.Fields = {
        "stabilizationWindowSeconds": round(rules.window_s),
        "policies": policies,
    }
    default_tolerance = EndpointPicker.model_fields["tolerance"].default
    if tolerance != default_tolerance:
        fields["tolerance"] = f"{tolerance:.6g}"
    return fields
