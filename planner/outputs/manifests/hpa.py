"""Write a plan for the Kubernetes HPA, which follows Headroom's metric or a metric of pods."""

from collections.abc import Iterator

from planner.outputs.manifests import common, keda
from planner.outputs.manifests.rules import loads_of, pod_metric
from planner.outputs.object_names import label_of
from planner.outputs.plans import Plan
from planner.outputs.pools import Pool

API, KIND = "autoscaling/v2", "HorizontalPodAutoscaler"


def documents(export: common.Export) -> list[common.Document]:
    """Return one HorizontalPodAutoscaler per pool, on Headroom's metric or that of a rule."""
    plan = export.plan
    if plan.rule:
        name, query = pod_metric(plan.rule)
        notes = [f"Needs an adapter of Prometheus that offers {name} of each pod: {query}."]
    else:
        with_guard = " with the replicas that the guard may add" if plan.has_guard else ""
        notes = [
            f"An HPA has no schedule. It follows {common.METRIC} of Headroom's /metrics. Activate "
            "this plan there. Let a Prometheus adapter offer it as an external metric with the "
            "labels pool and region.",
            "minReplicas is the lowest count of the plan, maxReplicas the highest"
            f"{with_guard}. Without the metric, the HPA changes nothing.",
            "A tolerance of 0 needs HPAConfigurableTolerance (Kubernetes 1.35 or later). Without "
            "it, Kubernetes ignores changes below 10%.",
            *_guard_notes(plan),
        ]
    documents = []
    for pool in plan.pools:
        # An HPA uses the largest result of all metrics, so the guard only adds replicas.
        metrics = [_metric(plan, pool)]
        for load in loads_of(pool, pods=""):
            threshold = quantity(load.threshold)
            metrics.append(external_metric(load.metric, {"deployment": pool.name}, threshold))
        documents.append(autoscaler(export, pool, metrics, behaviour=keda.behaviour(plan, pool)))
    return common.with_file_comment(export, documents, *notes, *scale_to_zero_note(plan))


def scale_to_zero_note(plan: Plan) -> tuple[str, ...]:
    """Return the note for plans that scale a pool to zero; an HPA does not by default."""
    if all(pool.min_replicas for pool in plan.pools):
        return ()
    return (
        "The plan scales some pools to zero. An HPA keeps one replica, unless the cluster has "
        "HPAScaleToZero, so minReplicas is 1. KEDA scales to zero.",
    )


def autoscaler(
    export: common.Export,
    pool: Pool,
    metrics: list[common.Fields],
    *,
    annotations: dict[str, str] | None = None,
    behaviour: common.Fields | None = None,
) -> common.Document:
    """Return the HorizontalPodAutoscaler of a pool, which scales it on ``metrics``.

    If ``behaviour`` is None, the defaults of Kubernetes apply: scale up at once, scale down after
    five minutes.
    """
    # Without HPAScaleToZero, Kubernetes refuses 0.
    minimum = max(export.plan.lowest_replicas(pool), 1)
    spec = {
        "scaleTargetRef": common.scale_target(common.deployment(pool)),
        "minReplicas": minimum,
        "maxReplicas": max(pool.max_with_guard, minimum),
        "metrics": metrics,
        "behavior": behaviour,
    }
    return common.pool_document(export, pool, API, KIND, "hpa", spec, annotations=annotations)


def _metric(plan: Plan, pool: Pool) -> common.Fields:
    """Return the metric that the HPA of a pool follows: its rule's, or the plan's replicas."""
    if plan.rule is None:
        return external_metric(common.METRIC, {"pool": pool.name, "region": label_of(pool.region)})
    name, _ = pod_metric(plan.rule)
    return {
        "type": "Pods",
        "pods": {
            "metric": {"name": name},
            "target": {"type": "AverageValue", "averageValue": quantity(plan.rule.target)},
        },
    }


def external_metric(name: str, labels: dict[str, str], per_replica: str = "1") -> common.Fields:
    """Return an external metric; the HPA requests value / ``per_replica`` (a quantity) replicas."""
    return {
        "type": "External",
        "external": {
            "metric": {"name": name, "selector": {"matchLabels": labels}},
            "target": {"type": "AverageValue", "averageValue": per_replica},
        },
    }


def _guard_notes(plan: Plan) -> Iterator[str]:
    """Yield the notes on the external metrics that the reactive guard needs, with their queries."""
    if not plan.has_guard:
        return
    yield (
        "Load can add replicas above the plan: the HPA uses the largest metric. Add these "
        "external metrics to the Prometheus adapter. The vLLM series need a label deployment."
    )
    adapter_placeholder = "<<.LabelMatchers>>"  # the adapter puts the labels of a pool here
    loads = [load for pool in plan.pools for load in loads_of(pool, adapter_placeholder)]
    queries = {load.metric: load.query for load in loads}
    for metric, query in queries.items():
        yield f"{metric}: {query}"


def quantity(value: float) -> str:
    """Return a number as a Kubernetes quantity in thousandths: 1.5 is 1500m."""
    return f"{round(value * 1000)}m"
