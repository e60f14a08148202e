"""List the formats that carry out a plan, and write a plan in one of them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from planner.errors import NotReady
from planner.models import Run
from planner.outputs.manifests import (
    aibrix,
    deferrable_work,
    dynamo,
    hpa,
    keda,
    kserve,
    llmd,
    wva,
)
from planner.outputs.manifests.common import Document, Export, yaml_text
from planner.outputs.options import ExportOptions
from planner.outputs.plans import plan_of

Documents = Callable[[Export], list[Document]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A format that carries out a plan, such as a KEDA ScaledObject."""

    label: str  # in menus
    documents: Documents  # function that returns its objects
    own: tuple[str, ...] = ()  # options that this format reads and not all others do


USUAL = "keda"  # its schedule needs no metrics source
MANIFESTS: dict[str, Manifest] = {
    "hpa": Manifest("Kubernetes HPA", hpa.documents, ("most",)),
    "keda": Manifest("KEDA ScaledObject", keda.documents, ("prometheus", "most")),
    "wva": Manifest("llm-d WVA", wva.documents, ("prometheus", "form")),
    "dynamo": Manifest("NVIDIA Dynamo", dynamo.documents, ("at", "most")),
    "llm-d": Manifest("llm-d modelservice values", llmd.documents, ("at",)),
    "kserve": Manifest("KServe LLMInferenceService", kserve.documents, ("most",)),
    "aibrix": Manifest("AIBrix PodAutoscaler", aibrix.documents),
}


def manifest_yaml(kind: str, run: Run, options: ExportOptions, now: datetime) -> bytes:
    """Return the plan of a run as YAML in the format ``kind``, such as "keda".

    Every object is validated. Raises NotReady if the policy is the autoscaler of a system that
    reads another format.
    """
    from planner.outputs.validation import check  # slow to import; no page needs it

    plan = plan_of(run, options, now)
    if plan.rule and plan.rule.policy and plan.rule.export_format != kind:
        system = plan.rule.export_format
        raise NotReady(f"{plan.label} runs only on its own system. Export it to {system}.")
    export = Export(plan, options, now)
    documents = MANIFESTS[kind].documents(export)
    if kind != "llm-d":  # it has values of a Helm chart, which cannot hold other objects
        documents += deferrable_work.documents(export)
    for document in documents:
        object_name = document.body.get("metadata", {}).get("name", kind)
        check(document.schema, document.body, f"{object_name} to {kind}")
    return yaml_text(documents).encode()
