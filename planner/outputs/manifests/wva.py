"""Write a plan for llm-d's Workload Variant Autoscaler (WVA), which scales within its limits.

Since July 2026 WVA reads annotations of an HPA or ScaledObject. Releases up to v0.8.0 read a
separate object, VariantAutoscaling.
"""

from planner.outputs.manifests import common, hpa, keda
from planner.outputs.pools import Pool

API, KIND = "llmd.ai/v1alpha1", "VariantAutoscaling"
WVA_METRIC = "wva_desired_replicas"


def documents(export: common.Export) -> list[common.Document]:
    """Return one object per pool, of the kind that the option ``form`` names."""
    pools = export.plan.pools
    notes = [
        "WVA scales on load. minReplicas and maxReplicas are the lowest and highest counts of the "
        "plan.",
        "The cost of a variant is dollars per hour of a replica. Without a price, WVA uses 10.",
    ]
    if export.options.form == "scaledobject":
        notes.append("The schedule is a floor: the largest trigger wins.")
        documents = [_scaled_object(export, pool) for pool in pools]
    elif export.options.form == "hpa":
        notes += hpa.scale_to_zero_note(export.plan)
        documents = [_hpa(export, pool) for pool in pools]
    else:
        notes.append("For releases up to v0.8.0. Later releases ignore it.")
        documents = [_legacy(export, pool) for pool in pools]
    return common.with_file_comment(export, documents, *notes)


def wva_annotations(pool: Pool) -> dict[str, str]:
    """Return the annotations that let WVA scale the object of a pool."""
    annotations = {"llm-d.ai/managed": "true", "llm-d.ai/model-id": pool.model}
    if cost := cost_of(pool):
        annotations["llm-d.ai/variant-cost"] = cost
    return annotations


def cost_of(pool: Pool) -> str | None:
    """Return the USD per hour of one replica as text; None if the scenario has no price."""
    usd = pool.facts.usd_per_hour
    return None if usd is None else f"{usd:.2f}"


def _hpa(export: common.Export, pool: Pool) -> common.Document:
    """Return an HPA that follows WVA's metric."""
    labels = {"variant_name": pool.name}
    if export.options.namespace:
        labels["exported_namespace"] = export.options.namespace
    metrics = [hpa.external_metric(WVA_METRIC, labels)]
    return hpa.autoscaler(export, pool, metrics, annotations=wva_annotations(pool))


def _scaled_object(export: common.Export, pool: Pool) -> common.Document:
    """Return a ScaledObject that follows WVA's metric, with the schedule as a floor."""
    namespace = export.options.namespace
    namespace_label = f',exported_namespace="{namespace}"' if namespace else ""
    query = f'max({WVA_METRIC}{{variant_name="{pool.name}"{namespace_label}}})'
    trigger = common.prometheus_trigger(export, "wva", query, threshold=1, no_result_is_zero=False)
    return keda.scaled_object(
        export, pool, common.deployment(pool), extra=(trigger,), annotations=wva_annotations(pool)
    )


def _legacy(export: common.Export, pool: Pool) -> common.Document:
    """Return the VariantAutoscaling of a pool, for releases up to v0.8.0."""
    spec = {
        "scaleTargetRef": common.scale_target(common.deployment(pool)),
        "modelID": pool.model,
        "variantCost": cost_of(pool),
        "minReplicas": export.plan.lowest_replicas(pool),
        "maxReplicas": max(pool.max_replicas, 1),
    }
    return common.pool_document(export, pool, API, KIND, "wva", spec)
