"""Write a plan for NVIDIA Dynamo: a graph and a KEDA ScaledObject for each scaling adapter.

The graph holds the replicas and the adapter of each component.
"""

from __future__ import annotations

from typing import Any

from planner.outputs.manifests import keda
from planner.outputs.manifests.common import (
    Document,
    Export,
    Target,
    heading,
    metadata,
    place_words,
    with_head,
)
from planner.outputs.manifests.groups import Service, services
from planner.outputs.object_names import name_of
from planner.outputs.plans import Pool

API, KIND = "nvidia.com/v1beta1", "DynamoGraphDeployment"
ADAPTER = "DynamoGraphDeploymentScalingAdapter"
ROLES = {"mixed": "worker", "both": "worker"}  # other roles keep their name: prefill, decode


def documents(export: Export) -> list[Document]:
    """Return the graph of each service and the ScaledObjects of its pools."""
    plan = export.plan
    documents: list[Document] = []
    for service in services(plan.pools, "dynamo"):
        documents.append(_graph(export, service))
        documents += [_scaled_object(export, service, pool) for pool in service.pools]
    notes = [
        "Merge the components into your graph by name. Pods and the frontend are not included.",
        "A component with a scalingAdapter gets its count from the adapter. Until KEDA writes it, "
        "replicas applies.",
        *keda.trigger_notes(plan),
    ]
    if not all(pool.least for pool in plan.pools):
        notes.append("Without any worker, Dynamo's frontend forgets the model (404).")
    return with_head(documents, heading(export, *notes))


def component_of(pool: Pool) -> str:
    """Return the name of a pool's component in the graph."""
    return ROLES.get(pool.role, pool.role)


def _graph(export: Export, service: Service) -> Document:
    """Return the graph of a service."""
    body = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata(export, service.decode, service.name),
        "spec": {"components": [_component(export, pool) for pool in service.pools]},
    }
    return Document(body, "dynamo", tuple(place_words(pool) for pool in service.pools))


def _component(export: Export, pool: Pool) -> dict[str, Any]:
    """Return the component of a pool, with its initial replicas."""
    role = component_of(pool)
    replicas = pool.least if export.plan.rule else pool.at(export.moment)
    return {"name": role, "type": role, "replicas": replicas, "scalingAdapter": {}}


def _scaled_object(export: Export, service: Service, pool: Pool) -> Document:
    """Return the ScaledObject of a pool's adapter, which Dynamo names after graph and component."""
    adapter = f"{service.name}-{component_of(pool)}"
    return keda.scaled_object(export, pool, Target(ADAPTER, adapter, API), name=name_of([adapter]))
