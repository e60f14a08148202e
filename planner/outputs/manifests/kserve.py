"""Write a plan for KServe: an LLMInferenceService whose replicas KEDA's triggers set."""

from planner.outputs.manifests import common, keda
from planner.outputs.manifests.groups import services
from planner.outputs.plans import pool_text
from planner.outputs.pools import Pool

API, KIND = "serving.kserve.io/v1alpha2", "LLMInferenceService"


def documents(export: common.Export) -> list[common.Document]:
    """Return one LLMInferenceService per service."""
    plan = export.plan
    notes = [
        "Merge into your service. Its model and template are not included.",
        "KServe passes the triggers to KEDA, which must be installed.",
        *keda.trigger_notes(plan),
    ]
    if not all(pool.min_replicas for pool in plan.pools):
        notes.append("KServe keeps one replica if the plan has none, so minReplicas is 1.")
    documents = []
    for service in services(plan.pools, "kserve"):
        spec = _role(export, service.decode)
        if service.prefill:
            spec["prefill"] = _role(export, service.prefill)
        fields = common.metadata(export, service.decode, service.name)
        body = common.kubernetes_object(API, KIND, fields, spec=spec)
        documents.append(common.Document(body, "kserve", tuple(map(pool_text, service.pools))))
    return common.with_file_comment(export, documents, *notes)


def _role(export: common.Export, pool: Pool) -> common.Fields:
    """Return the parallelism and the scaling of a pool."""
    scaled = {
        "pollingInterval": keda.POLL_S,
        "advanced": {
            "horizontalPodAutoscalerConfig": {"behavior": keda.behaviour(export.plan, pool)}
        },
        "triggers": keda.triggers(export, pool),
    }
    # KServe keeps one replica, see the note in ``documents``.
    minimum = max(export.plan.lowest_replicas(pool), 1)
    return {
        "parallelism": {"tensor": pool.gpus},
        "scaling": {
            "minReplicas": minimum,
            "maxReplicas": max(pool.max_with_guard, minimum),
            "keda": scaled,
        },
    }
