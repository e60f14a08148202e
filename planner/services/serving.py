"""What serves a draft's traffic, where nobody has said it: a model that the trace names, or a
recent one; on the GPU type that most have; in the arrangement that is known best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from planner import catalogue
from planner.catalogue.modelled import modelled
from planner.errors import CatalogueError, NotFound
from planner.models import Trace
from simulation.performance.profile import Profile

MODEL, GPU = "qwen3-32b", "H100-SXM"
MOST_MODELS = 8  # of a file, each served by its own in a draft


@dataclass(frozen=True, slots=True)
class Serving:
    """``row``: it as a profile of a scenario. ``labels``: by what the trace calls its models, what
    serves each; empty where one serves all of it."""

    profile: Profile
    row: dict[str, Any]
    named: bool  # the trace names its model
    labels: Mapping[str, Serving] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def all(self) -> tuple[Serving, ...]:
        """Each model's once."""
        by_model = {serving.profile.model: serving for serving in self.labels.values()}
        return tuple(by_model.values()) or (self,)


def serving_of(trace: Trace, model: str = "", gpu: str = "") -> Serving:
    """What was chosen, or what the trace names, or the default; raises NotFound with what there
    is."""
    known = servings()
    named = {} if model else dict(_named(trace, {m for m, _ in known}))
    labels = told_apart(trace)
    if labels and named:
        each = {
            label: _serving(known, named.get(label, MODEL), gpu, label in named, strict=False)
            for label in labels
        }
        first = _serving(known, next(iter(named.values())), gpu, named=True)
        return replace(first, labels=MappingProxyType(each))
    return _serving(known, model or next(iter(named.values()), MODEL), gpu, bool(named))


def told_apart(trace: Trace) -> tuple[str, ...]:
    """Models that the file tells apart, by its own names; none where it has one, too many for a
    first draft, or requests without any."""
    report = trace.report
    if trace.kind == Trace.Kind.REQUESTS:
        labels = [label for label in report.get("models") or [] if label]
        if any("requests have no model" in note for note in report.get("notes") or []):
            return ()
    else:
        named = [series.get("model") for series in report.get("series", [])]
        labels = [] if None in named else [str(label) for label in dict.fromkeys(named)]
    return tuple(labels) if 1 < len(labels) <= MOST_MODELS else ()


def _serving(
    known: Mapping[tuple[str, str], Profile],
    model_asked: str,
    gpu: str,
    named: bool,
    strict: bool = True,
) -> Serving:
    """Not ``strict``: on another GPU type where there is no profile on that one."""
    of = {g: candidate for (m, g), candidate in known.items() if m == model_asked}
    if not of:
        raise NotFound(f"No built-in profile serves {model_asked!r}; choose a model of the list.")
    if gpu and gpu not in of and strict:
        raise NotFound(
            f"No built-in profile has {model_asked} on {gpu!r}; there are {', '.join(of)}."
        )
    usual = GPU if GPU in of else next(iter(of))
    profile = of[gpu if gpu in of else usual]
    return Serving(profile, _row(profile), named)


def servings() -> dict[tuple[str, str], Profile]:
    """One built-in profile of each model and GPU type: the one to trust."""
    profiles: dict[tuple[str, str], Profile] = {}
    for model, gpu, _ in catalogue.profiles():
        profiles[model, gpu] = catalogue.profiles()[model, gpu, best_tp(model, gpu)]
    for modelled_profile in modelled():
        profiles.setdefault((modelled_profile.model, modelled_profile.gpu), modelled_profile)
    return profiles


def best_tp(model: str, gpu: str) -> int:
    """GPUs per instance of the built-in profile to trust: a measured one, else the smallest."""
    by_tp = {tp: p for (m, g, tp), p in catalogue.profiles().items() if (m, g) == (model, gpu)}
    return min(by_tp, key=lambda tp: (by_tp[tp].provenance.kind != "measured", tp))


def names(label: str, model: str) -> bool:
    """Whether ``label`` is one of the catalogue's names of ``model``."""
    try:
        return catalogue.model_name(label) == model
    except CatalogueError:
        return False


def _named(trace: Trace, known: set[str]) -> Iterator[tuple[str, str]]:
    """The file's labels with the models that they name, of those that can be served."""
    for label in trace.report.get("models") or []:
        try:
            name = catalogue.model_name(label)
        except CatalogueError:
            continue
        if name in known:
            yield label, name


def _row(profile: Profile) -> dict[str, Any]:
    row: dict[str, Any] = {"model": profile.model, "gpu": profile.gpu, "tp": profile.tp}
    if profile.kind == "roofline":
        precision = catalogue.published_precision(profile.model)
        row |= {"kind": "roofline"} | ({} if precision == "bf16" else {"precision": precision})
    return row
