"""Build the page of a profile: parameters, limits, versions and its largest errors."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from planner.domain.formats import tpot
from planner.domain.report import Fact, Form
from planner.models import ProfileVersion
from planner.selectors import profiles as known
from planner.selectors.schedules import observed_speeds
from planner.web.pages.profile_figures import (
    basis_of,
    decode_figure,
    prefill_figure,
    residual_figures,
)
from planner.web.request import TemplateContext
from simulation.performance.fitting.compare import stated_check
from simulation.performance.profile import Check, Profile, iteration_s

SHOWN_OUTLIERS, SHOWN_SPEEDS = 20, 5
REQUESTS, CONTEXT, PROMPT = 64, 2048, 1024  # loads whose speed is shown first
MEANINGS = {  # of the parameters of a linear profile, in the order of its formula
    "alpha": "decode iteration, fixed part",
    "beta": "decode iteration, per request",
    "gamma": "prefill iteration, fixed part",
    "delta": "prefill iteration, per prompt token",
}


def page_context(profile: known.KnownProfile) -> TemplateContext:
    """Return the context of a profile's page."""
    residuals = known.profile_residuals(profile)
    return {
        "profile": profile,
        "facts": list(_facts(profile)),
        "basis": basis_of(profile.profile),
        "versions": versions(profile.name),
        "parameters": parameters(profile),
        "limits": limits(profile.profile),
        "decode_figure": decode_figure(profile.profile),
        "prefill_figure": prefill_figure(profile.profile),
        "residual_figures": residual_figures(residuals),
        "outliers": outliers(residuals),
        "residual_rows": residuals.height,
        "speeds": observed_speeds(profile.model, profile.gpu, profile.tp)[:SHOWN_SPEEDS],
    }


def _facts(profile: known.KnownProfile) -> Iterator[Fact]:
    """Yield the speed of decode and prefill at usual loads, and the error that plans assume."""
    # iteration_s: requests in decode, their KV tokens, prompt tokens, and pairs of tokens.
    speed = profile.profile
    context = f"at {CONTEXT:,} tokens of context"
    for requests in (1, min(REQUESTS, speed.max_batch)):
        decode_s = float(iteration_s(speed, requests, requests * CONTEXT, 0, 0))
        label = "TPOT, 1 request" if requests == 1 else f"TPOT, {requests} requests"
        yield Fact(label, 1e3 * decode_s, "ms", note=context)
    # Causal attention: each token attends to half of the prompt on average.
    prefill_s = float(iteration_s(speed, 0, 0, PROMPT, PROMPT * PROMPT / 2))
    yield Fact(f"Prefill of {PROMPT:,} tokens", 1e3 * prefill_s, "ms", note="an idle replica")
    check = profile.stated_check
    if check:
        note = f"{tpot(check.quantity)}, {tpot(check.against)}"
        yield Fact("Error in plans", check.mape, form=Form.SHARE, note=note)


def versions(name: str) -> list[tuple[ProfileVersion, Check | None]]:
    """Return every version of a profile, each with the check that states its accuracy."""
    versions = []
    for version in known.profile_versions(name):
        checks = [Check(**check) for check in version.checks]
        spread = float(version.report.get("spread") or 0.0)
        is_modelled = version.provenance == "modelled"
        versions.append((version, stated_check(checks, spread, is_modelled)))
    return versions


def parameters(profile: known.KnownProfile) -> list[tuple[str, str, Any]]:
    """Return names, meanings and values of parameters in the order of the formula.

    PostgreSQL keeps no order of keys.
    """
    known_names = [name for name in MEANINGS if name in profile.parameters]
    others = sorted(set(profile.parameters) - set(known_names))
    return [
        (name, MEANINGS.get(name, ""), profile.parameters[name]) for name in (*known_names, *others)
    ]


def limits(profile: Profile) -> list[tuple[str, float, str]]:
    """Return label, value and unit of each limit of a profile."""
    return [
        ("Maximum requests in a batch", profile.max_batch, "requests"),
        ("Maximum tokens per iteration", profile.max_batch_tokens, "tokens"),
        ("KV cache", profile.kv_capacity_tokens, "tokens"),
    ]


def outliers(residuals: pl.DataFrame) -> list[dict[str, float | str | bool]]:
    """Return the residual rows with the largest errors, worst first."""
    worst_first = residuals.filter(pl.col("outlier")).sort(pl.col("error").abs(), descending=True)
    return worst_first.head(SHOWN_OUTLIERS).to_dicts()
