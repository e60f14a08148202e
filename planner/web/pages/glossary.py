"""What the words on the pages mean, in plain ones, with the names that papers use beside them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from planner.policies.base import Group
from planner.policies.choice import policy_groups
from planner.policies.registry import TRAITS


@dataclass(frozen=True, slots=True)
class Term:
    """``also`` are other names for it: of papers, of other tools, in scenario files."""

    group: str
    name: str
    meaning: str
    also: str = ""

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")


WORK, LIMITS, FLEET, PLAN, PROVENANCE = (
    "Work", "Limits and tiers", "The fleet", "Planning and replay", "Where numbers come from",
)  # fmt: skip

TERMS: tuple[Term, ...] = (
    Term(WORK, "Trace", "Requests with their moments and lengths, or counts per bin."),
    Term(WORK, "Prompt tokens", "What a request brings; reading them is prefill.", "input, ISL"),
    Term(WORK, "Answer tokens", "What is written for it, one after the other, which is decode.",
         "output, OSL"),
    Term(WORK, "Interactive, fast", "Somebody waits for each word.", "IW-F in SageServe"),
    Term(WORK, "Interactive, relaxed", "Somebody waits, for a minute if need be.",
         "IW-N in SageServe"),
    Term(WORK, "Batch", "Nobody waits; done by a deadline of hours, when there is room.",
         "NIW in SageServe, deferrable"),
    Term(LIMITS, "Tier", "Requests of one kind of promise: their limits, and which share must keep "
         "them."),
    Term(LIMITS, "TTFT", "Time to first token: from arrival until an answer begins."),
    Term(LIMITS, "TBT", "Time between two tokens of an answer.", "TPOT, ITL"),
    Term(LIMITS, "E2E", "From arrival to the last token."),
    Term(LIMITS, "SLO", "The limits of a tier with the share of requests that must keep them, such "
         "as TTFT of 1 s for 95%."),
    Term(LIMITS, "In time", "The share of a tier's requests within all its limits.", "attainment"),
    Term(LIMITS, "p95", "95 of 100 are no worse than this."),
    Term(FLEET, "Replica", "A model ready to serve on its GPUs: one, or several that share it.",
         "instance"),
    Term(FLEET, "Pool", "The replicas of one model in one region on one kind of GPU."),
    Term(FLEET, "Prefill and decode apart", "Some replicas only read prompts, others only write "
         "answers; what was read moves between them.", "P/D disaggregation"),
    Term(FLEET, "KV cache", "What a replica keeps of each request while it is served; it fills the "
         "memory that weights leave."),
    Term(FLEET, "TP, PP, EP", "How one model is divided over GPUs: every layer, by layers, by "
         "experts.", "tensor, pipeline and expert parallelism"),
    Term(FLEET, "Start-up", "From asking for a replica until it serves."),
    Term(FLEET, "Spot", "GPUs at a lower price that may be taken back at any time."),
    Term(FLEET, "Spare", "Room left so that one replica or a region may be lost.", "N+1"),
    Term(FLEET, "Below the replica", "Operators or layers of a model that scale by "
         "themselves; worth it for few fleets, and its page says first when it is not."),
    Term(PLAN, "Profile", "How fast a model is on a kind of GPU, with its error."),
    Term(PLAN, "Size", "What a replica carries within the limits, by simulation."),
    Term(PLAN, "Forecast", "What is expected, with the band in which eight of ten peaks fall."),
    Term(PLAN, "Quantile", "How sure a plan is to have room: 0.9 covers nine peaks of ten."),
    Term(PLAN, "Period", "How often it is decided how many replicas there are."),
    Term(PLAN, "Replay", "The same requests, one by one, on the fleet that a policy would have "
         "had.", "simulation"),
    Term(PLAN, "Policy", "Who decides how many replicas there are, and by what."),
    Term(PLAN, "In hindsight", "Knows what came, as nobody did: a yardstick, nothing to run."),
    Term(PLAN, "Rehearsed", "Tried on the days before the window, where its parameters are "
         "chosen."),
    Term(PLAN, "Two objectives", "What one costs of the other, such as carbon of cost.",
         "Pareto front"),
    Term(PLAN, "Gap", "How far a plan may be from the best there is; 0% is proven best."),
    Term(PLAN, "MASE", "A forecast's error over that of repeating the bin before, one step ahead; "
         "hours ahead it may well pass 1. Whether repeating the day before would have been better "
         "stands in words beside the forecast."),
    Term(PROVENANCE, "Measured", "Somebody ran it and wrote down what came out; the source is "
         "named."),
    Term(PROVENANCE, "Published", "A data sheet, price list or paper says so."),
    Term(PROVENANCE, "Modelled", "Computed from other figures; its error stands beside it where it "
         "is known."),
    Term(PROVENANCE, "Assumed", "Nobody has said so: put in your own where it matters."),
)  # fmt: skip


def glossary() -> list[tuple[str, list[Term]]]:
    """Titles with their terms; policies in the words that they are chosen by."""
    groups = [(group, list(terms)) for group, terms in groupby(TERMS, key=lambda term: term.group)]
    policies = [
        Term("Policies", label, f"{line[:1].upper()}{line[1:]}", name)
        for title, rows in policy_groups()
        if title != Group.OWN
        for name, label, line in rows
        if name in TRAITS
    ]
    return [*groups, ("Policies", policies)]
