"""Write models that share GPUs as AIBrix ModelClaims, one per model and GPU.

A claim asks for a share of a GPU for one model. It selects a warm runtime pool by the label
``pool.aibrix.ai/name``. Fields and rules are those of AIBrix's API (api/model/v1alpha1 @ 1de52d83)
and documentation (docs/source/features/modelclaim.rst @ 01e507d). The share ``perGPU`` has two
parts. The footprint is all GPU memory but the KV cache. It includes memory of the allocator, so it
is measured. The KV floor is the KV cache of the longest request, which is also the engine's limit.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil

from planner.domain.kinds.share import ShareResult
from planner.domain.serialise import gpu_words
from planner.domain.sharing.figures import GpuFigures, ModelFigures
from planner.domain.sharing.packing import ALONE, TIME
from planner.errors import NotReady
from planner.inputs.catalogue import repository
from planner.models import Run
from planner.outputs.manifests import common
from planner.outputs.object_names import name_of
from planner.outputs.options import ExportOptions
from planner.selectors.runs import typed_result

API, KIND = "model.aibrix.ai/v1alpha1", "ModelClaim"
POOL = "pool.aibrix.ai/name"


def model_claims(run: Run, options: ExportOptions, now: datetime) -> bytes:
    """Return the ModelClaims of a run of kind ``share`` as YAML, one per model on a shared GPU.

    Raises NotReady for another kind of run, if no models share a GPU, if the memory footprint of a
    model is missing, or if the claims of a GPU need more memory than it has.
    """
    from planner.outputs.validation import check  # slow to import; no page needs it

    if run.kind != Run.Kind.SHARE:
        raise NotReady(f"Run {run.pk} shares no GPUs. Run share, and export that run.")
    result = typed_result(run, ShareResult)
    shared_gpus = [gpu for gpu in result.gpus if gpu.way != ALONE]
    if not shared_gpus:
        raise NotReady(f"No models share a GPU in run {run.pk}, so there are no claims.")
    figures_of_model = {(model.region, model.model): model for model in result.models}
    names = {model for gpu in shared_gpus for model in gpu.models}
    footprints = _footprints_gib(options, names)
    documents = []
    for gpu in shared_gpus:
        models = [figures_of_model[gpu.region, name] for name in gpu.models]
        needed_gib = _needed_gib(run, gpu, models, footprints)
        gpu_comment = _gpu_comment(run, gpu, needed_gib, now)
        for number, model in enumerate(models):
            body = _claim(run, gpu, model, options, footprints[model.model])
            check(KIND, body, body["metadata"]["name"])
            comment = gpu_comment if number == 0 else ()  # above the first claim of the GPU
            documents.append(common.Document(body, KIND, comment))
    return common.yaml_text(documents).encode()


def _footprints_gib(options: ExportOptions, models: set[str]) -> dict[str, float]:
    """Return each model's GiB without KV cache; raise NotReady if names do not match."""
    footprints = {}
    for text in options.footprints:  # MODEL=GIB
        model, _, gib = text.rpartition("=")
        footprints[model] = float(gib)
    unknown = sorted(footprints.keys() - models)
    if unknown:
        raise NotReady(
            f"footprints: {', '.join(unknown)} shares no GPU in this run. Remove it, or use the "
            "names of the scenario."
        )
    missing = sorted(models - footprints.keys())
    if missing:
        raise NotReady(
            f"footprints: AIBrix needs the measured GPU memory besides the KV cache of "
            f"{', '.join(missing)}. Run each engine alone, and give MODEL=GIB for each."
        )
    return footprints


def _needed_gib(
    run: Run, gpu: GpuFigures, models: Sequence[ModelFigures], footprints: Mapping[str, float]
) -> float:
    """Return the GiB that the claims of a GPU reserve; raise NotReady if they cannot fit."""
    if gpu.memory_gib is None:
        raise NotReady(f"Run {run.pk} is of an earlier release. Run share again for its claims.")
    needed = sum(footprints[model.model] + (model.kv_floor_gib or 0.0) for model in models)
    if needed > gpu.memory_gib:
        # With TIME, the models of a GPU take turns, and idle engines sleep.
        asleep = " AIBrix also reserves it for engines that sleep." if gpu.way == TIME else ""
        raise NotReady(
            f"{gpu.name}: footprints and KV floors take {needed:.1f} GiB of "
            f"{gpu.memory_gib:.4g} GiB.{asleep} Run share --by memory, or with fewer models."
        )
    return needed


def _claim(
    run: Run, gpu: GpuFigures, model: ModelFigures, options: ExportOptions, footprint_gib: float
) -> common.Fields:
    """Return the claim of one model on a GPU, with its measured footprint."""
    pool = name_of([gpu.name])
    args = {"--max-model-len": str(model.longest_tokens)}
    if gpu.gpus > 1:  # AIBrix requires as many as its Pods have
        args["--tensor-parallel-size"] = str(gpu.gpus)
    repository_id = repository(model.model)
    if "/" not in repository_id:
        raise NotReady(
            f"{model.model} has no Hugging Face id, which a ModelClaim needs. Name the model by "
            "its id."
        )
    spec = {
        "modelName": model.model,
        "podSelector": {"matchLabels": {POOL: pool}},
        "artifactURL": f"huggingface://{repository_id}",
        "engine": "vllm",
        "engineConfig": {"args": args},
        "replicas": 1,
        "perGPU": {
            "maximumFootprint": _mebibytes(footprint_gib),
            "kvFloor": _mebibytes(model.kv_floor_gib or 0.0),
        },
    }
    name = name_of([pool, model.model])
    metadata = common.object_metadata(options, run.pk, gpu.region, name)
    return common.kubernetes_object(API, KIND, metadata, spec=spec)


def _mebibytes(gib: float) -> str:
    """Return a Kubernetes quantity in whole Mi, rounded up."""
    rounding_error = 1e-9  # of the conversion, which must not add another Mi
    return f"{ceil(gib * 1024 - rounding_error)}Mi"


def _gpu_comment(run: Run, gpu: GpuFigures, needed_gib: float, now: datetime) -> tuple[str, ...]:
    """Return the comment lines above the claims of one GPU, which reserve ``needed_gib``."""
    lines = [
        f"Headroom, run {run.pk}; written {now:%Y-%m-%d %H:%M} UTC. {gpu.name}: "
        f"{len(gpu.models)} models with {gpu.weights_gb:,.0f} GB of weights.",
        f"It needs a warm pool of one Pod with {gpu_words(gpu.gpus)} ({gpu.gpu}) and this label.",
        f"Footprints (measured) and KV floors take {needed_gib:.1f} of {gpu.memory_gib:.4g} GiB.",
        "--max-model-len is the longest request of the run. Longer ones are refused.",
    ]
    if gpu.way == TIME:
        lines.append(
            "Let idle engines of the pool sleep: the plan loads their weights from host memory."
        )
    return tuple(lines)
