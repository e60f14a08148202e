"""Choose the profile (model, GPU type and GPUs per replica) that serves a draft's traffic.

The model is one that the trace names, or a recent one. The GPU type is that of the newest
scenarios, or else a common one. Measured profiles are preferred.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from planner.domain.trace_statistics.context_limits import longest_request
from planner.errors import NotFound
from planner.inputs import catalogue
from planner.inputs.catalogue.hardware import known_model
from planner.inputs.catalogue.rule_based_profiles import modelled_profile, modelled_profiles
from planner.models import Trace
from planner.selectors.scenarios import gpus_of_scenarios
from planner.storage import row_arrays
from simulation.performance.parameters import parameters
from simulation.performance.profile import Profile

DEFAULT_MODEL, DEFAULT_GPU = "qwen3-32b", "H100-SXM"
DEFAULT_EMBEDDER = "qwen3-embedding-8b"  # for requests without an answer
MAX_MODELS = 8  # models of a file that each get their own profile in a draft


@dataclass(frozen=True, slots=True)
class Serving:
    """The profile that serves the requests of a trace, or one profile for each model it names.

    ``by_label`` maps each model name in the trace to its Serving. It is empty if one profile
    serves all requests.
    """

    profile: Profile
    row: dict[str, Any]  # of the profile, in the ``profiles`` of a scenario
    trace_names_model: bool
    longest_tokens: int = 0  # of the longest request, if the model was chosen for its context
    by_label: Mapping[str, Serving] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def per_model(self) -> tuple[Serving, ...]:
        """Return one Serving per served model."""
        by_model = {serving.profile.model: serving for serving in self.by_label.values()}
        return tuple(by_model.values()) or (self,)


def choose_serving(trace: Trace, model: str = "", gpu: str = "") -> Serving:
    """Return how to serve a trace: by ``model``, else by the models it names, else by a default.

    The default is a model with a context large enough for the longest request, if there is one,
    and an embedding model if no request has an answer. A label is a model name in the trace. If
    each label is to get its own model, unknown ones get the default. Otherwise one model serves all
    requests. ``gpu`` "" is the usual GPU type. Raises NotFound with the available names.
    """
    profiles = built_in_profiles()
    models = {model_name for model_name, _ in profiles}
    gpus = {gpu_name for _, gpu_name in profiles}
    usual_gpu = next(name for name in (*gpus_of_scenarios(), DEFAULT_GPU) if name in gpus)
    if model:
        return _serving_of_model(profiles, model, gpu, usual_gpu, trace_names_model=False)
    # The built-in model for each label, if there is one.
    known_models = {label: known_model(label) for label in trace.report.get("models") or []}
    model_by_label = {label: name for label, name in known_models.items() if name in models}
    labels_to_serve = model_labels(trace)  # () if one model serves all
    default_model, longest_tokens = DEFAULT_MODEL, 0
    if trace.requests and trace.report.get("unanswered") == trace.requests:
        default_model = DEFAULT_EMBEDDER
    elif labels_to_serve or not model_by_label:
        default_model, longest_tokens = _default_model(trace, gpu or usual_gpu)
    first_model = next(iter(model_by_label.values()), default_model)
    first = _serving_of_model(
        profiles, first_model, gpu, usual_gpu, trace_names_model=bool(model_by_label)
    )
    if not (labels_to_serve and model_by_label):
        return replace(first, longest_tokens=longest_tokens)
    serving_by_label = {}
    for label in labels_to_serve:
        serving_by_label[label] = _serving_of_model(
            profiles,
            model_by_label.get(label, default_model),
            gpu,
            usual_gpu,
            trace_names_model=label in model_by_label,
            strict=False,  # the chosen GPU type may lack some of the models
        )
    return replace(first, by_label=MappingProxyType(serving_by_label))


def _default_model(trace: Trace, gpu: str) -> tuple[str, int]:
    """Return the model for a trace that names none, and the tokens of its longest request.

    It is DEFAULT_MODEL, with 0 tokens, if that takes the longest request. Else it is another model
    on the GPU type ``gpu`` that takes it, if there is one.
    """
    if trace.kind != Trace.Kind.REQUESTS or not trace.store:
        return DEFAULT_MODEL, 0
    longest_tokens = longest_request(row_arrays.local_path(trace.store))
    if longest_tokens <= catalogue.shape(DEFAULT_MODEL).max_context:
        return DEFAULT_MODEL, 0
    large_enough = models_for(longest_tokens, {gpu}, DEFAULT_MODEL)
    return (large_enough[0], longest_tokens) if large_enough else (DEFAULT_MODEL, 0)


def models_for(tokens: int, gpus: Collection[str], model: str) -> tuple[str, ...]:
    """Return the built-in models that take a request of ``tokens`` on one of the types ``gpus``.

    Models without an image encoder come first, then those closest to ``model`` in size.
    """
    shapes = {name: catalogue.shape(name) for name, gpu in built_in_profiles() if gpu in gpus}
    wanted_parameters = parameters(catalogue.shape(model)).total

    def difference(name: str) -> tuple[bool, float, str]:
        """Return a sort key: whether the model reads images, the log ratio of sizes, the name."""
        shape = shapes[name]
        size_ratio = parameters(shape).total / wanted_parameters
        return shape.encoder is not None, abs(math.log(size_ratio)), name

    fits = (name for name, shape in shapes.items() if shape.max_context >= tokens and shape.causal)
    return tuple(sorted(fits, key=difference))


def model_labels(trace: Trace) -> tuple[str, ...]:
    """Return the model names in the trace's file, if each is to get its own profile.

    The result is empty for one model, for more than MAX_MODELS, and if some requests have no model.
    """
    report = trace.report
    if trace.kind == Trace.Kind.REQUESTS:
        some_unnamed = report.get("without_model", 0) > 0
        labels = [label for label in report.get("models") or [] if label]
    else:
        of_series = [series.get("model") for series in report.get("series", [])]
        some_unnamed = None in of_series
        labels = list(dict.fromkeys(of_series))
    if some_unnamed or not 1 < len(labels) <= MAX_MODELS:
        return ()
    return tuple(labels)


def _serving_of_model(
    profiles: Mapping[tuple[str, str], Profile],
    model: str,
    gpu: str,
    usual_gpu: str,
    *,
    trace_names_model: bool,
    strict: bool = True,
) -> Serving:
    """Return the Serving of ``model`` by a built-in profile on the GPU type ``gpu``.

    ``gpu`` "" stands for ``usual_gpu``, or another type if that has no profile. If ``gpu`` has no
    profile of the model, raise NotFound if ``strict``, else use another GPU type. Raises NotFound
    for a model without any profile. ``trace_names_model``: the model's name is from the trace.
    """
    by_gpu = {
        profile_gpu: profile
        for (profile_model, profile_gpu), profile in profiles.items()
        if profile_model == model
    }
    if not by_gpu:
        raise NotFound(f"No built-in profile serves {model!r}. Choose a model of the list.")
    # built_in_profiles() has no modelled profile for some GPU types that could serve the model.
    wanted_gpu = gpu or usual_gpu
    if wanted_gpu not in by_gpu:
        modelled = _modelled_profile(model, wanted_gpu)
        if modelled is not None:
            by_gpu[wanted_gpu] = modelled
    if gpu and gpu not in by_gpu and strict:
        raise NotFound(
            f"No built-in profile has {model} on {gpu!r}. Choose from {', '.join(by_gpu)}."
        )
    preferred_gpus = (gpu, usual_gpu, DEFAULT_GPU, *by_gpu)
    profile = by_gpu[next(name for name in preferred_gpus if name in by_gpu)]
    row: dict[str, Any] = {"model": profile.model, "gpu": profile.gpu, "tp": profile.tp}
    if profile.kind == "roofline":
        row["kind"] = "roofline"
        precision = catalogue.published_precision(profile.model)
        if precision != "bf16":
            row["precision"] = precision
    return Serving(profile, row, trace_names_model)


def _modelled_profile(model: str, gpu: str) -> Profile | None:
    """Return the computed profile of ``model``; None if the GPU type cannot run its precision."""
    spec = catalogue.gpus().get(gpu)
    if spec is None or catalogue.published_precision(model) not in spec.peak_flops:
        return None
    return modelled_profile(model, gpu)


def built_in_profiles() -> dict[tuple[str, str], Profile]:
    """Return the most reliable built-in profile of each (model, GPU type)."""
    profiles: dict[tuple[str, str], Profile] = {}
    for model, gpu, _ in catalogue.profiles():
        profiles[model, gpu] = catalogue.profiles()[model, gpu, best_tp(model, gpu)]
    for modelled in modelled_profiles():
        profiles.setdefault((modelled.model, modelled.gpu), modelled)
    return profiles


def best_tp(model: str, gpu: str) -> int:
    """Return the GPUs per replica of the best built-in profile of ``model`` on ``gpu``.

    Measured profiles come before others, then those with fewer GPUs.
    """
    profiles = [
        profile
        for profile in catalogue.profiles().values()
        if (profile.model, profile.gpu) == (model, gpu)
    ]
    measured = [profile.tp for profile in profiles if profile.provenance.kind == "measured"]
    return min(measured or [profile.tp for profile in profiles])
