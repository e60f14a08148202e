"""What serves a draft's traffic, where nobody has said it: a model that the trace names, or a
recent one; on the GPU type that most have; in the arrangement that is known best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner import catalogue
from planner.catalogue.modelled import modelled
from planner.errors import CatalogueError, NotFound
from planner.models import Trace
from simulation.performance.profile import Profile

MODEL, GPU = "qwen3-32b", "H100-SXM"


@dataclass(frozen=True, slots=True)
class Serving:
    """``row``: it as a profile of a scenario."""

    profile: Profile
    row: dict[str, Any]
    named: bool  # the trace names its model


def serving_of(trace: Trace, model: str = "", gpu: str = "") -> Serving:
    """What was chosen, or the default; raises NotFound with what there is."""
    known = servings()
    named = "" if model else next(_named(trace, {m for m, _ in known}), "")
    wanted = model or named or MODEL
    of = {g: one for (m, g), one in known.items() if m == wanted}
    if not of:
        raise NotFound(f"No built-in profile serves {wanted!r}; choose a model of the list.")
    if gpu and gpu not in of:
        raise NotFound(f"No built-in profile has {wanted} on {gpu!r}; there are {', '.join(of)}.")
    profile = of[gpu or (GPU if GPU in of else next(iter(of)))]
    return Serving(profile, _row(profile), bool(named))


def servings() -> dict[tuple[str, str], Profile]:
    """One built-in profile of each model and GPU type: the one to trust."""
    found: dict[tuple[str, str], Profile] = {}
    for model, gpu, _ in catalogue.profiles():
        found[model, gpu] = catalogue.profiles()[model, gpu, best_tp(model, gpu)]
    for one in modelled():
        found.setdefault((one.model, one.gpu), one)
    return found


def best_tp(model: str, gpu: str) -> int:
    """GPUs per instance of the built-in profile to trust: a measured one, else the smallest."""
    own = {tp: p for (m, g, tp), p in catalogue.profiles().items() if (m, g) == (model, gpu)}
    return min(own, key=lambda tp: (own[tp].provenance.kind != "measured", tp))


def _named(trace: Trace, known: set[str]) -> Iterator[str]:
    """Models that the file's labels name, of those that can be served."""
    for label in trace.report.get("models") or []:
        try:
            name = catalogue.model_name(label)
        except CatalogueError:
            continue
        if name in known:
            yield name


def _row(profile: Profile) -> dict[str, Any]:
    row: dict[str, Any] = {"model": profile.model, "gpu": profile.gpu, "tp": profile.tp}
    if profile.kind == "roofline":
        precision = catalogue.published_precision(profile.model)
        row |= {"kind": "roofline"} | ({} if precision == "bf16" else {"precision": precision})
    return row
