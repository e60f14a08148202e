"""What a draft fills in that nobody told it: beside each, why, and how much it matters.

How much is from sizes alone, by the fluid model of one instance at mean lengths
(``simulation.sizing.queueing``): it simulates nothing, so it tells proportions, not fleets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner import catalogue
from planner.models import Trace
from planner.scenario.document import parse
from planner.scenario.schema import Scenario
from planner.services import drafts
from planner.services.serving import Serving, servings
from planner.studies.checks.profile_error import stated_error
from simulation.performance.profile import Profile
from simulation.sizing.queueing import largest_rate

LONGER = 1.2
ELSEWHERE = "Another model or GPU type is another fleet."
OTHERS = ("llama-3.1-8b", "gpt-oss-120b", "llama-3.1-70b")  # to tell what another model takes


@dataclass(frozen=True, slots=True)
class Assumed:
    """``section`` is that of the form where it is changed."""

    section: str
    what: str
    value: str
    why: str
    matters: str = ""


def assumed_of(trace: Trace, document: str, serving: Serving) -> tuple[Assumed, ...]:
    """Of a draft over ``trace`` that ``serving`` serves, in the order of the form."""
    draft, profile = parse(document), serving.profile
    return (
        *_serving(trace, draft, serving),
        *_limits(draft),
        *_lengths(trace, draft, profile),
    )


def _serving(trace: Trace, draft: Scenario, serving: Serving) -> Iterator[Assumed]:
    profile, region, tier = serving.profile, draft.regions[0], draft.tiers[0]
    gpu, error = profile.gpu, stated_error(profile)
    whose = "your file names it" if serving.named else "your file does not say what serves it"
    how_sure = "" if error is None else f", off by about {error.value:.0%}"
    (capacity,) = region.capacity.values()
    usd = catalogue.regions()[region.like or ""].usd_per_gpu_hour[gpu]
    yield Assumed(
        "profiles",
        "Model and GPUs",
        f"{profile.model} on {profile.tp} × {gpu}",
        f"{whose}; its speed is {profile.provenance.kind}{how_sure}",
        _others(trace, profile),
    )
    yield Assumed(
        "regions",
        "Region and price",
        f"{region.name}, as {region.like}: ${usd:,.2f} per GPU-hour, {capacity:,} GPUs to be had",
        "all traffic comes from and is served in one region, at the list price on demand",
        "Cost goes with the price; another region adds its round trip to the first token.",
    )
    yield Assumed(
        "fleet",
        "Start of a replica",
        f"{draft.fleet.startup_s / 60:g} min",
        "weights are at hand in the region (SageServe, section 4)",
        "The longer, the earlier a plan has to ask, and the less a policy without one can do.",
    )
    if (tier.ttft_ms or 0) > drafts.TTFT_MS:
        yield Assumed(
            "tiers",
            "First token of the fast tier",
            f"within {(tier.ttft_ms or 0) / 1000:g} s instead of {drafts.TTFT_MS / 1000:g} s",
            "the trace's long prompts take half of that on an idle replica",
            "A stricter limit needs faster GPUs, or leaves long prompts out of it.",
        )


def _limits(draft: Scenario) -> Iterator[Assumed]:
    shares = draft.traffic.sources[0].tiers
    told = "; ".join(
        f"{shares.get(tier.name, 0):.0%} {tier.name}, "
        + ", ".join(
            f"{name} {limit / 1000:g} s"
            for name, limit in (("TTFT", tier.ttft_ms), ("TBT", tier.tbt_ms))
            if limit is not None
        )
        for tier in draft.tiers
    )
    yield Assumed(
        "tiers",
        "Tiers and their limits",
        told,
        "your file has no tiers; these are SageServe's interactive ones (IW-F, IW-N)",
        "What may wait longer needs fewer replicas at the peak.",
    )


def _lengths(trace: Trace, draft: Scenario, speed: Profile) -> Iterator[Assumed]:
    prompt, answer = drafts.mean_lengths(trace)
    usual = largest_rate(speed, prompt, answer)[0]
    for what, name, longer in (
        ("Prompt lengths", "input_tokens", (LONGER * prompt, answer)),
        ("Answer lengths", "output_tokens", (prompt, LONGER * answer)),
    ):
        given = next((g for s in draft.traffic.sources if (g := getattr(s, name))), None)
        if given is None:
            continue
        more = usual / largest_rate(speed, *longer)[0] - 1
        yield Assumed(
            "sources",
            what,
            f"mean {given.mean:,.0f} tokens, spread (CV) {given.cv:g}",
            "your file counts none; these are of Azure's conversations of 2023",
            f"If they are {LONGER - 1:.0%} longer, about {more:.0%} more replicas and cost.",
        )


def _others(trace: Trace, profile: Profile) -> str:
    """How many GPUs of the same type other models take."""
    lengths, known = drafts.mean_lengths(trace), servings()
    own = largest_rate(profile, *lengths)[0] / profile.tp
    others = [
        f"{name} takes about {own * one.tp / largest_rate(one, *lengths)[0]:.2g} times the GPUs"
        for name in OTHERS
        if name != profile.model and (one := known.get((name, profile.gpu))) is not None
    ]
    return f"Another model is another fleet: {', '.join(others)}." if others else ELSEWHERE
