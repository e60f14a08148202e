"""Write a plan for llm-d: values of the Helm chart llm-d-modelservice, one release per service."""

from planner.outputs.manifests import common
from planner.outputs.manifests.groups import Service, services
from planner.outputs.plans import pool_text
from planner.outputs.pools import Pool


def documents(export: common.Export) -> list[common.Document]:
    """Return the Helm values of each service."""
    plan = export.plan
    notes = [
        f"The replicas are those of {export.moment:%Y-%m-%d %H:%M} ({plan.zone}), because values "
        "have no schedule. For a schedule, export to keda and set autoscaling.enabled.",
        "Merge into your values. Weights and containers are not included.",
        *common.schedule_only_note(plan),
    ]
    documents = [_values(export, service) for service in services(plan.pools, "llm-d")]
    if len(documents) > 1:
        notes.append(
            "Helm takes the values of one release. Export each region and model, or split this "
            "file at the lines ---."
        )
    return common.with_file_comment(export, documents, *notes)


def _values(export: common.Export, service: Service) -> common.Document:
    """Return the Helm values of a service."""
    # A replica with more GPUs than a node has needs several nodes.
    multinode = any(pool.gpus > (pool.facts.gpus_per_node or pool.gpus) for pool in service.pools)
    body = {
        "fullnameOverride": service.name,
        "multinode": multinode,
        "decode": _role(export, service.decode),
        "prefill": {"create": False, "replicas": 0}
        if service.prefill is None
        else _role(export, service.prefill),
    }
    comment = (f"Release {service.name}", *map(pool_text, service.pools))
    return common.Document(body, "llm-d", comment)


def _role(export: common.Export, pool: Pool) -> common.Fields:
    """Return the Helm values of a pool: its replicas and parallelism."""
    return {"create": True, "replicas": export.replicas(pool), "parallelism": {"tensor": pool.gpus}}
