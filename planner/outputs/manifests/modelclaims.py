"""Write models that share GPUs as AIBrix ModelClaims, one per model and GPU.

A claim selects a warm runtime pool by the label ``pool.aibrix.ai/name``. AIBrix's documentation
(docs/source/features/modelclaim.rst @ 01e507d) lists the fields and how to make a pool.
``perGPU`` is required (api/model/v1alpha1 @ 1de52d83), but its footprint must be measured on the
engine, so the user adds it.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from planner.domain.serialise import gpu_words
from planner.domain.sharing.packing import ALONE, TIME
from planner.errors import NotReady
from planner.inputs.catalogue import repository
from planner.models import Run
from planner.outputs.manifests.common import OURS
from planner.outputs.object_names import label_of, name_of
from planner.outputs.options import ExportOptions
from planner.outputs.yaml_text import yaml_text
from planner.selectors.runs import run_result

API, KIND = "model.aibrix.ai/v1alpha1", "ModelClaim"
POOL = "pool.aibrix.ai/name"


def model_claims(run: Run, options: ExportOptions, now: datetime) -> bytes:
    """Return the claims of a run of ``share`` as YAML.

    Raises NotReady for another kind of run, or if no models share a GPU.
    """
    from planner.outputs.validation import check  # slow to import; no page needs it

    if run.kind != Run.Kind.SHARE:
        raise NotReady(f"Run {run.pk} shares no GPUs. Run share, and export that run.")
    shared = [gpu for gpu in run_result(run)["gpus"] if gpu["way"] != ALONE]
    if not shared:
        raise NotReady(f"No models share a GPU in run {run.pk}, so there are no claims.")
    bodies, heads = [], []
    for gpu in shared:
        for i, body in enumerate(_claims(run, gpu, options)):
            check(KIND, body, body["metadata"]["name"])
            bodies.append(body)
            heads.append(_head(run, gpu, now) if i == 0 else ())
    return yaml_text(bodies, heads).encode()


def _claims(run: Run, gpu: Mapping[str, Any], options: ExportOptions) -> Iterator[dict[str, Any]]:
    """Yield a claim for each model of a GPU."""
    pool = name_of([gpu["name"]])
    for model in gpu["models"]:
        yield {
            "apiVersion": API,
            "kind": KIND,
            "metadata": {
                "name": name_of([pool, model]),
                **({"namespace": options.namespace} if options.namespace else {}),
                "labels": {"app.kubernetes.io/managed-by": OURS, f"{OURS}/run": str(run.pk),
                           f"{OURS}/region": label_of(gpu["region"])},
            },
            "spec": {
                "modelName": model,
                "podSelector": {"matchLabels": {POOL: pool}},
                "artifactURL": f"huggingface://{_repository(model)}",
                "engine": "vllm",
                "replicas": 1,
            },
        }  # fmt: skip


def _repository(model: str) -> str:
    """Return the Hugging Face id of a model; raise NotReady if it is not known."""
    found = repository(model)
    if "/" not in found:
        raise NotReady(
            f"{model} has no Hugging Face id, which a ModelClaim needs. Name the model by its id."
        )
    return found


def _head(run: Run, gpu: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    """Return the comment above the claims of one GPU."""
    sleep = "Let idle engines of the pool sleep: the plan loads their weights from host memory."
    return (
        f"Headroom, run {run.pk}; written {now:%Y-%m-%d %H:%M} UTC. {gpu['name']}: "
        f"{len(gpu['models'])} models with {gpu['weights_gb']:,.0f} GB of weights.",
        f"It needs a warm pool of one Pod with {gpu_words(gpu['gpus'])} ({gpu['gpu']}) and this "
        "label.",
        *((sleep,) if gpu["way"] == TIME else ()),
        "Add perGPU to each claim, measured in a run of the model. AIBrix refuses claims without.",
    )
