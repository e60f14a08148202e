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
from simulation.sizing.queueing import largest_rate

LONGER = 1.2


@dataclass(frozen=True, slots=True)
class Assumed:
    """``section`` is that of the form where it is changed."""

    section: str
    what: str
    value: str
    why: str
    matters: str = ""


def assumed_of(trace: Trace, document: str) -> tuple[Assumed, ...]:
    """Of a draft over ``trace``, in the order of the form."""
    draft = parse(document)
    return (*_serving(trace, draft), *_limits(draft), *_lengths(trace, draft))


def _serving(trace: Trace, draft: Scenario) -> Iterator[Assumed]:
    profile, region, tier = draft.profiles[0], draft.regions[0], draft.tiers[0]
    gpu, tp = profile.gpu, profile.tp or 1
    (capacity,) = region.capacity.values()
    usd = catalogue.regions()[region.like or ""].usd_per_gpu_hour[gpu]
    yield Assumed(
        "profiles",
        "Model and GPUs",
        f"{profile.model} on {tp} × {gpu}",
        "the built-in profile that rests on measurements; your file does not say what serves it",
        _others(trace, profile.model, gpu, tp),
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
        "your file has no tiers; these are SageServe's interactive ones",
        "What may wait longer needs fewer replicas at the peak.",
    )


def _lengths(trace: Trace, draft: Scenario) -> Iterator[Assumed]:
    profile = draft.profiles[0]
    speed = catalogue.profiles()[profile.model, profile.gpu, profile.tp or 1]
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


def _others(trace: Trace, model: str, gpu: str, tp: int) -> str:
    """How many GPUs the other built-in arrangements take, of those known for this GPU type."""
    lengths = drafts.mean_lengths(trace)
    known = catalogue.profiles()

    def rate(key: tuple[str, str, int]) -> float:
        return largest_rate(known[key], *lengths)[0] / key[2]

    own = rate((model, gpu, tp))
    bigger = "llama-3.1-70b"
    keys = [key for key in known if key[0] == bigger and key[1] == gpu]
    if not keys or bigger == model:
        return "Another model or GPU type is another fleet."
    times = own / max(rate(key) for key in keys)
    return f"Another model is another fleet: {bigger} takes about {times:.2g} times the GPUs."
