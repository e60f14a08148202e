"""Read an autoscaler of today as the policy that simulates it."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from planner.inputs.fleet.pools import MEASURES, number, one_line, rows, section, whole_number
from simulation.policies.dynamo_planner import Predictor

Row = dict[str, Any]
Body = Mapping[str, Any]
Queries = list[tuple[str, float | None]]
NUMBER = r"([\d.]+(?:[eE][-+]?\d+)?)"
# The policy of llm-d's endpoint picker, by the metric in the query of its first trigger.
POLICY_OF_METRIC = {
    "llm_d_epp_flow_control_queue_size": "epp-queue",
    "llm_d_epp_flow_control_pool_saturation": "epp-saturation",
    "llm_d_epp_inflight_tokens": "epp-tokens",
}
# Metrics in the query of the second trigger of such a policy.
SECOND_METRICS = ("llm_d_epp_request_running", "kv_cache_usage_perc")
SLO_FIELDS = {"ttft_seconds": "ttft_ms", "tpot_seconds": "tbt_ms"}
AIBRIX = "autoscaling.aibrix.ai/"
ANNOTATIONS = {
    "max-scale-up-rate": "max_up_rate",
    "max-scale-down-rate": "max_down_rate",
    "scale-up-tolerance": "up_tolerance",
    "scale-down-tolerance": "down_tolerance",
    "panic-threshold": "panic_threshold",
    "scale-up-cooldown-window": "up_cooldown_s",
    "scale-down-cooldown-window": "down_cooldown_s",
}
PLANNER_KEYS = {"optimization_target", "load_predictor", "throughput_adjustment_interval_seconds"}
# Fields of a policy by key of a PlannerConfig; the last ones depend on its target.
PLANNER_FIELDS = {"min_endpoint": "min_replicas", "total_gpu_power_limit": "power_w"}
THROUGHPUT_FIELDS = {"load_adjustment_interval_seconds": "interval_s"}
FIELDS_OF_TARGET = {
    "sla": {"ttft_ms": "ttft_ms", "itl_ms": "itl_ms",
            "max_throughput_scaling_replicas": "max_step",
            "throughput_adjustment_interval_seconds": "interval_s"},
    "load": {"load_adjustment_interval_seconds": "interval_s",
             "prefill_scale_up_queue_tokens": "prefill_out_tokens",
             "prefill_scale_down_queue_tokens": "prefill_in_tokens"},
}  # fmt: skip
PLANNER_BUDGET = 8  # GPUs of a PlannerConfig that states none
SECONDS_OF_UNIT = {"s": 1, "m": 60, "h": 3600, "ms": 0.001}


def scaled_object_row(body: Body) -> Row | None:
    """Return the policy of a ScaledObject on llm-d's endpoint picker; None for other metrics."""
    spec = section(body, "spec")
    triggers = [section(row, "metadata") for row in rows(spec, "triggers")]
    queries = [(one_line(meta, "query"), number(meta, "threshold")) for meta in triggers]
    formula = one_line(spec, "advanced", "scalingModifiers", "formula")
    row = _latency_policy(formula, queries) or _load_policy(queries)  # {}: neither
    if row.get("name") == "epp-queue" and "pending" in formula:
        # The formula states the targets. KEDA ignores the triggers' thresholds then.
        row["name"] = "epp-queue-guard"
        for key, signal in (("target", "queue"), ("second_target", "running")):
            if target := re.search(rf"{signal}_per_replica\s*=\s*{NUMBER}", formula):
                row[key] = float(target[1])
    if not row:
        return None
    behaviour = section(spec, "advanced", "horizontalPodAutoscalerConfig", "behavior")
    for key, direction in (("up", "scaleUp"), ("down", "scaleDown")):
        if direction in behaviour:
            row[key] = _scaling_direction(section(behaviour, direction))
    if tolerance := number(behaviour, "scaleUp", "tolerance"):
        row["tolerance"] = tolerance
    return row | {"interval_s": float(whole_number(spec, "pollingInterval") or 30)}


def _latency_policy(formula: str, queries: Queries) -> Row:
    """Return the policy of a formula with latencies, with its targets and limits; {} if none."""
    # Saturations above which the formula scales out, and below which it scales in.
    band = re.search(rf"saturation\s*>\s*{NUMBER}.*saturation\s*<\s*{NUMBER}", formula, re.DOTALL)
    if not band:
        return {}
    row = {"name": "epp-latency", "target": float(band[1]), "second_target": float(band[2])}
    for query, _ in queries:
        limits = re.findall(rf"(ttft_seconds|tpot_seconds)_bucket.*?/\s*{NUMBER}", query)
        row |= {SLO_FIELDS[metric]: float(limit) * 1000 for metric, limit in limits}
    return row


def _load_policy(queries: Queries) -> Row:
    """Return the load-based policy of triggers (PromQL, threshold) with its targets; {} if none."""
    row: Row = {}
    for query, threshold in queries:
        name = next((name for metric, name in POLICY_OF_METRIC.items() if metric in query), None)
        if name is not None:
            row |= {"name": name, "target": threshold}
            # The query divides tokens in flight by the tokens/s of a replica.
            divisor = re.search(rf"/\s*{NUMBER}", query)
            if name == "epp-tokens" and divisor:
                row["prefill_tps"] = float(divisor[1])
        elif any(metric in query for metric in SECOND_METRICS):
            row["second_target"] = threshold
    if row.keys() == {"second_target"}:  # requests in flight are a policy without a first trigger
        by_requests = any("llm_d_epp_request_running" in query for query, _ in queries)
        return {"name": "epp-inflight", "target": row["second_target"]} if by_requests else {}
    return row


def _scaling_direction(direction: Body) -> Row:
    """Return the largest steps of an HPA's scaling direction, with the longer period."""
    steps = {one_line(row, "type"): row for row in rows(direction, "policies")}
    periods = [number(row, "periodSeconds") or 15.0 for row in steps.values()]
    return {
        "percent": number(steps.get("Percent", {}).get("value")) or 0.0,
        "replicas": whole_number(steps.get("Pods", {}).get("value")) or 0,
        "period_s": max(periods, default=15.0),
        "window_s": number(direction, "stabilizationWindowSeconds") or 0.0,
    }


def pod_autoscaler_row(body: Body) -> Row | None:
    """Return the policy of AIBrix's PodAutoscaler; None if no policy simulates it."""
    spec = section(body, "spec")
    strategy = one_line(spec, "scalingStrategy").lower()
    sources = rows(spec, "metricsSources")
    if strategy not in ("apa", "kpa") or len(sources) != 1:
        return None
    (source,) = sources
    metric_name = one_line(source.get("targetMetric"))
    measure = next(
        (name for name, parts in MEASURES.items() if any(part in metric_name for part in parts)),
        None,
    )
    target = number(source.get("targetValue"))
    if measure is None or not target:
        return None
    row: Row = {"name": f"aibrix-{strategy}", "metric": measure, "target": target}
    annotations = section(body, "metadata", "annotations")
    values = {
        field: seconds(annotations.get(f"{AIBRIX}{name}")) for name, field in ANNOTATIONS.items()
    }
    values["stable_window_s"] = number(spec, "observeWindowSeconds")
    values["panic_window_s"] = number(spec, "panicWindowSeconds")
    row |= {field: value for field, value in values.items() if value is not None}
    if schedules := [_schedule(schedule) for schedule in rows(spec, "schedules")]:
        row["schedules"] = schedules
    return row


def _schedule(row: Body) -> Row:
    """Return an AIBrix schedule as a row with days, times and replica limits."""
    days = [one_line(day).lower()[:3] for day in row.get("daysOfWeek") or ()]
    return {
        **({"days": days} if days else {}),
        "start": one_line(row, "startTime"),
        "end": one_line(row, "endTime"),
        "minimum": whole_number(row, "minReplicas") or 0,
        "maximum": whole_number(row, "maxReplicas") or 1,
    }


def planner_row(body: Body) -> Row | None:
    """Return the policy of Dynamo's planner in a PlannerConfig or a ConfigMap; None for others."""
    if one_line(body, "kind") == "ConfigMap":
        configs = map(_parsed_mapping, section(body, "data").values())
        return next(filter(None, map(planner_row, configs)), None)
    if body.get("kind") or not PLANNER_KEYS & body.keys():
        return None
    target = one_line(body, "optimization_target") or "throughput"
    row: Row = {"name": f"dynamo-{target}"}
    if target == "sla":
        row |= {"ttft_ms": 500.0, "itl_ms": 50.0}  # of a PlannerConfig that states none
        predictor = one_line(body, "load_predictor") or "arima"  # default of a PlannerConfig
        if predictor in get_args(Predictor):
            row["predictor"] = predictor
    if target == "load":
        for key, field in (("decode_scale_up_kv_rate", "decode_out_kv"),
                           ("decode_scale_down_kv_rate", "decode_in_kv")):  # fmt: skip
            if (rate := number(body.get(key))) is not None:
                row[field] = rate / 100
    fields = PLANNER_FIELDS | FIELDS_OF_TARGET.get(target, THROUGHPUT_FIELDS)
    for key, field in fields.items():
        if (value := number(body.get(key))) is not None:
            row[field] = int(value) if field in ("min_replicas", "max_step") else value
    budget = number(body.get("max_gpu_budget", PLANNER_BUDGET))
    return row | ({"max_gpus": int(budget)} if budget is not None and budget >= 0 else {})


def _parsed_mapping(text: Any) -> Body:
    """Return the mapping in a YAML or JSON text; empty if the text has none."""
    try:
        loaded = YAML(typ="safe", pure=True).load(one_line(text))
    except (YAMLError, ValueError, TypeError):
        return {}
    return loaded if isinstance(loaded, Mapping) else {}


def seconds(value: Any) -> float | None:
    """Return a number or a duration such as 5m in seconds; None for another value."""
    match = re.fullmatch(r"([\d.]+)(ms|s|m|h)?", one_line(value))
    if match is None:
        return None
    amount, unit = match.groups()
    return float(amount) * SECONDS_OF_UNIT.get(unit or "", 1)
