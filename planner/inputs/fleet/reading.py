"""Read the fleet that runs today from the text of a file: YAML, JSON or a launch line."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from planner.errors import ScenarioError
from planner.files.documents import yaml_documents
from planner.inputs.fleet.autoscalers import planner_row
from planner.inputs.fleet.helm_values import is_values, values_pools
from planner.inputs.fleet.kubernetes import kubernetes_pools
from planner.inputs.fleet.launch_lines import is_launch, launch_pools
from planner.inputs.fleet.pools import RunningPool, one_line, rows

MAX_CHARACTERS = 250_000  # a few seconds to read
MAX_POOLS = 1000
READS = (
    "Deployment, StatefulSet, LeaderWorkerSet, InferenceService, LLMInferenceService, "
    "DynamoGraphDeployment, ScaledObject, HorizontalPodAutoscaler, PodAutoscaler, values of llm-d "
    "or vLLM's production stack, or a launch line of vLLM, SGLang or TensorRT-LLM"
)


def read_fleet(text: str, name: str = "fleet") -> list[RunningPool]:
    """Return the pools in a text (YAML, JSON, launch lines); raise ScenarioError without any."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_CHARACTERS:
        raise ScenarioError(
            f"{name}: longer than {MAX_CHARACTERS:,} characters. Split it by deployment."
        )
    try:
        documents = list(_documents(text, name))
    except ScenarioError:
        if not is_launch(text):
            raise
        documents = []
    objects = [document for document in documents if document.get("kind") or planner_row(document)]
    values = [d for d in documents if not d.get("kind") and is_values(d)]
    pools = [*kubernetes_pools(objects), *chain.from_iterable(map(values_pools, values))]
    if not pools and not documents and is_launch(text):
        note = "a launch line starts one replica"
        pools = [replace(pool, replicas=1, notes=(note,)) for pool in launch_pools(text)]
    if not pools:
        kinds = ", ".join(dict.fromkeys(filter(None, (one_line(d, "kind") for d in documents))))
        raise ScenarioError(
            f"{name}: no model server and no autoscaler found"
            f"{f' ({kinds[:200]} do not name a model)' if kinds else ''}. Give {READS}."
        )
    if len(pools) > MAX_POOLS:
        raise ScenarioError(f"{name}: more than {MAX_POOLS:,} pools. Split it by deployment.")
    return pools


def _documents(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings of a YAML or JSON text; items of lists are yielded one by one."""
    if "{{" in text:
        raise ScenarioError(
            f"{name}: it is a template of a chart. Render it with `helm template`, and give that."
        )
    for document in yaml_documents(text.replace("\t", "    "), name, ScenarioError):
        if isinstance(document, list):
            yield from rows(document)
        elif isinstance(document, Mapping):
            items = rows(document, "items")
            yield from items if one_line(document, "kind").endswith("List") else [document]
