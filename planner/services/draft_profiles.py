"""Choose the profile that serves a draft's traffic.

It is a model that the trace names, or a recent one. It runs on the GPU type of the newest
scenarios, else on the most common one, in the arrangement with the best data.
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
    """A profile that serves traffic, with its row for a scenario (``row``).

    ``labels`` maps each model name in the trace to its own serving. It is empty if one profile
    serves all requests.
    """

    profile: Profile
    row: dict[str, Any]
    named: bool  # the trace names its model
    longest: int = 0  # tokens of the longest request, if the model was chosen for it
    labels: Mapping[str, Serving] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def all(self) -> tuple[Serving, ...]:
        """Return the serving of each model, without repeats."""
        by_model = {serving.profile.model: serving for serving in self.labels.values()}
        return tuple(by_model.values()) or (self,)


def choose_serving(trace: Trace, model: str = "", gpu: str = "") -> Serving:
    """Return how to serve a trace: as chosen, else by the model the trace names, else a default.

    The default is a model whose context is large enough for the longest request, if there is one.

    Raises NotFound with the available names.
    """
    profiles = built_in_profiles()
    models = {model_name for model_name, _ in profiles}
    gpus = {gpu_name for _, gpu_name in profiles}
    usual = next(name for name in (*gpus_of_scenarios(), DEFAULT_GPU) if name in gpus)
    known = {label: known_model(label) for label in trace.report.get("models") or []}
    # Built-in models by their label in the trace. A chosen model replaces all of them.
    named = {label: name for label, name in known.items() if name in models and not model}
    labels = model_labels(trace)
    embeds = trace.requests and trace.report.get("unanswered") == trace.requests
    default = DEFAULT_EMBEDDER if embeds else DEFAULT_MODEL
    longest = 0
    needs_default = not model and (not named or labels)
    if needs_default and not embeds:
        default, longest = _default_model(trace, gpu or usual)
    if labels and named:
        by_label = {
            label: _serving_of_model(
                profiles, named.get(label, default), gpu, usual, label in named, strict=False
            )
            for label in labels
        }
        first = _serving_of_model(profiles, next(iter(named.values())), gpu, usual, named=True)
        return replace(first, labels=MappingProxyType(by_label))
    chosen = model or next(iter(named.values()), default)
    serving = _serving_of_model(profiles, chosen, gpu, usual, bool(named))
    return replace(serving, longest=longest)


def _default_model(trace: Trace, gpu: str) -> tuple[str, int]:
    """Return the model for a trace that names none, on GPU type ``gpu``, and the reason: tokens.

    These are the tokens of the longest request, if another model is chosen since they exceed the
    context of DEFAULT_MODEL; else 0.
    """
    if trace.kind == Trace.Kind.REQUESTS and trace.store:
        longest = longest_request(row_arrays.local_path(trace.store))
        if longest > catalogue.shape(DEFAULT_MODEL).max_context:
            for larger in models_for(longest, {gpu}, DEFAULT_MODEL):
                return larger, longest
    return DEFAULT_MODEL, 0


def models_for(tokens: int, gpus: Collection[str], model: str) -> tuple[str, ...]:
    """Return the built-in models on the types ``gpus`` whose context holds ``tokens`` of a request.

    Models without an image encoder come first, then those closest to ``model`` in size.
    """
    shapes = {name: catalogue.shape(name) for name, gpu in built_in_profiles() if gpu in gpus}
    size = parameters(catalogue.shape(model)).total

    def difference(name: str) -> tuple[bool, float, str]:
        """Return (reads images, distance of the size as log of the ratio, ``name``), to sort by."""
        shape = shapes[name]
        return shape.encoder is not None, abs(math.log(parameters(shape).total / size)), name

    fits = (name for name, shape in shapes.items() if shape.max_context >= tokens and shape.causal)
    return tuple(sorted(fits, key=difference))


def model_labels(trace: Trace) -> tuple[str, ...]:
    """Return the model names in the trace's file, if each can get its own profile.

    Return none for one model, for more than MAX_MODELS, and if some requests have no model.
    """
    report = trace.report
    if trace.kind == Trace.Kind.REQUESTS:
        labels = [label for label in report.get("models") or [] if label]
        if any("requests have no model" in note for note in report.get("notes") or []):
            return ()
    else:
        named = [series.get("model") for series in report.get("series", [])]
        labels = [] if None in named else [str(label) for label in dict.fromkeys(named)]
    return tuple(labels) if 1 < len(labels) <= MAX_MODELS else ()


def _serving_of_model(
    profiles: Mapping[tuple[str, str], Profile],
    model: str,
    gpu: str,
    usual: str,
    named: bool,
    strict: bool = True,
) -> Serving:
    """Return the built-in profile of ``model`` on ``gpu``, and whether the trace names the model.

    Without ``gpu``, the GPU type is ``usual`` or else the default. If ``gpu`` has no profile of the
    model, raise NotFound if ``strict``, else use another GPU type. Raises NotFound for a model
    without any profile.
    """
    by_gpu = {g: profile for (m, g), profile in profiles.items() if m == model}
    if not by_gpu:
        raise NotFound(f"No built-in profile serves {model!r}. Choose a model of the list.")
    spec = catalogue.gpus().get(chosen := gpu or usual)
    # Not every type that computes in the precision of the weights is in the catalogue's rule.
    if chosen not in by_gpu and spec and catalogue.published_precision(model) in spec.peak_flops:
        by_gpu |= {chosen: made} if (made := modelled_profile(model, chosen)) else {}
    if gpu and gpu not in by_gpu and strict:
        raise NotFound(
            f"No built-in profile has {model} on {gpu!r}. Choose from {', '.join(by_gpu)}."
        )
    profile = by_gpu[next(name for name in (gpu, usual, DEFAULT_GPU, *by_gpu) if name in by_gpu)]
    return Serving(profile, _scenario_row(profile), named)


def built_in_profiles() -> dict[tuple[str, str], Profile]:
    """Return one built-in profile per model and GPU type, the most reliable one."""
    profiles: dict[tuple[str, str], Profile] = {}
    for model, gpu, _ in catalogue.profiles():
        profiles[model, gpu] = catalogue.profiles()[model, gpu, best_tp(model, gpu)]
    for modelled in modelled_profiles():
        profiles.setdefault((modelled.model, modelled.gpu), modelled)
    return profiles


def best_tp(model: str, gpu: str) -> int:
    """Return the GPUs per replica of the most reliable built-in profile of ``model`` on ``gpu``.

    A measured profile is more reliable; of equal ones, the one with the fewest GPUs is chosen.
    """
    by_tp = {tp: p for (m, g, tp), p in catalogue.profiles().items() if (m, g) == (model, gpu)}
    return min(by_tp, key=lambda tp: (by_tp[tp].provenance.kind != "measured", tp))


def _scenario_row(profile: Profile) -> dict[str, Any]:
    """Return the row of a scenario's ``profiles`` for a built-in profile."""
    row: dict[str, Any] = {"model": profile.model, "gpu": profile.gpu, "tp": profile.tp}
    if profile.kind == "roofline":
        precision = catalogue.published_precision(profile.model)
        row |= {"kind": "roofline"} | ({} if precision == "bf16" else {"precision": precision})
    return row
