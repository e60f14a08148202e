"""Built-in profiles that cannot both be right: more GPUs of one kind that carry less.

Each is what somebody measured, on an engine and a set-up of their own; a comparison of two such
profiles compares those, not numbers of GPUs. They stay, with a sentence wherever they are used.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulation.performance.linear import LinearProfile

CONTRADICTED = "contradicted by a neighbour"
Key = tuple[str, str, int]  # model, GPU type, GPUs of an instance
ISL, OSL = 1155.0, 211.0  # tokens; means of Azure's conversations of 2023


def carries(profile: LinearProfile, isl: float = ISL, osl: float = OSL) -> float:
    """Requests/s of one instance that always decodes ``max_batch`` sequences: each request takes
    its share of osl iterations and its own prompt."""
    tokens = osl * (profile.alpha_s / profile.max_batch + profile.beta_s)
    return 1.0 / (tokens + isl * profile.delta_s)


def contradictions(known: Mapping[Key, LinearProfile]) -> dict[Key, str]:
    """A sentence for each profile of a pair of which the one on more GPUs carries less."""
    sentences: dict[Key, str] = {}
    for few in sorted(known):
        for many in sorted(known):
            if few[:2] != many[:2] or few[2] >= many[2]:
                continue
            less, more = carries(known[many]), carries(known[few])
            if less >= more:
                continue
            words = (
                f"{CONTRADICTED}: {few[0]} carries {less:.1f} requests/s on {many[2]} "
                f"x {few[1]} by {_origin(known[many])} and {more:.1f} on {few[2]} by "
                f"{_origin(known[few])} ({ISL:,.0f} input and {OSL:,.0f} output tokens), though "
                "more GPUs cannot carry less: their engines or set-ups differ, so measure your own"
            )
            for key in (few, many):
                sentences.setdefault(key, words)
    return sentences


def _origin(profile: LinearProfile) -> str:
    """Who measured it, in a few words."""
    if profile.provenance.kind != "measured":
        return "what is modelled"
    return profile.provenance.source.removeprefix("ITL: ").split(" ")[0]
