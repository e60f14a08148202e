"""Kubernetes' autoscaler: it follows our gauge of desired replicas, or a rule's metric of pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.exports.manifests import keda
from planner.exports.manifests.common import (
    METRIC,
    Document,
    Export,
    deployment,
    heading,
    metadata,
    place_words,
    scale_target,
    with_head,
)
from planner.exports.manifests.rules import loads_of, pod_metric
from planner.exports.names import label_of
from planner.exports.plans import Plan, Pool, Rule

API, KIND = "autoscaling/v2", "HorizontalPodAutoscaler"


def documents(export: Export) -> list[Document]:
    plan = export.plan
    if plan.rule:
        name, series = pod_metric(plan.rule)
        notes: tuple[str, ...] = (
            f"Needs an adapter of Prometheus that offers {name} of each pod: {series}.",
        )
    else:
        notes = (
            f"An HPA has no timetable: it follows {METRIC} of Headroom's /metrics, so put this "
            "plan in force there, and have an adapter of Prometheus offer it as an external "
            "metric with the labels pool and region.",
            "Between minReplicas and maxReplicas, the plan's least and "
            + ("what the guard may add; " if plan.guarded else "most; ")
            + "where the metric is missing it stays as it is.",
            "tolerance 0 asks for HPAConfigurableTolerance (Kubernetes 1.34 or later); without it "
            "the cluster's 10% holds, and of ten replicas one more or less is not carried out.",
            *_guard_words(plan),
        )
    documents = [
        autoscaler(
            export,
            pool,
            [_metric(plan, pool), *_by_load(pool)],
            behaviour=keda.behaviour(plan, pool),
        )
        for pool in plan.pools
    ]
    return with_head(documents, heading(export, *notes, *least_words(plan)))


def least_words(plan: Plan) -> tuple[str, ...]:
    if all(pool.least for pool in plan.pools):
        return ()
    return (
        "The plan has none of some pools at times; an HPA keeps one unless the cluster has "
        "HPAScaleToZero, so minReplicas is 1 here. KEDA goes to none.",
    )


def autoscaler(
    export: Export,
    pool: Pool,
    metrics: list[dict[str, Any]],
    *,
    annotations: dict[str, str] | None = None,
    behaviour: dict[str, Any] | None = None,
) -> Document:
    """Left out, ``behaviour`` is Kubernetes' own: up at once, down after five minutes."""
    least = max(export.plan.floor(pool), 1)
    body = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata(export, pool, annotations=annotations),
        "spec": {
            "scaleTargetRef": scale_target(deployment(pool)),
            "minReplicas": least,
            "maxReplicas": max(pool.ceiling, least),
            "metrics": metrics,
            **({"behavior": behaviour} if behaviour else {}),
        },
    }
    return Document(body, "hpa", (place_words(pool),))


def _metric(plan: Plan, pool: Pool) -> dict[str, Any]:
    if plan.rule:
        return _of_pods(plan.rule)
    return external(METRIC, {"pool": pool.name, "region": label_of(pool.region)})


def external(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """A metric that is the number of replicas itself: one of it by replica."""
    return {
        "type": "External",
        "external": {
            "metric": {"name": name, "selector": {"matchLabels": labels}},
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }


def _by_load(pool: Pool) -> list[dict[str, Any]]:
    """Of a guarded plan: the largest wish of an HPA's metrics wins."""
    return [
        {
            "type": "External",
            "external": {
                "metric": {
                    "name": load.metric,
                    "selector": {"matchLabels": {"deployment": pool.name}},
                },
                "target": {"type": "AverageValue", "averageValue": quantity(load.threshold)},
            },
        }
        for load in loads_of(pool, "")
    ]


def _guard_words(plan: Plan) -> Iterator[str]:
    """What the adapter has to offer beside our gauge."""
    if not plan.guarded:
        return
    yield (
        "Above the plan it goes by load, the largest wish wins: have the adapter offer these as "
        "external metrics too, of vLLM's series with a label deployment."
    )
    matchers = "<<.LabelMatchers>>"
    loads = {load.metric: load.query for pool in plan.pools for load in loads_of(pool, matchers)}
    for metric, query in loads.items():
        yield f"{metric}: {query}"


def _of_pods(rule: Rule) -> dict[str, Any]:
    return {
        "type": "Pods",
        "pods": {
            "metric": {"name": pod_metric(rule)[0]},
            "target": {"type": "AverageValue", "averageValue": quantity(rule.target)},
        },
    }


def quantity(value: float) -> str:
    """Kubernetes' own, in thousandths."""
    return f"{round(value * 1000)}m"
