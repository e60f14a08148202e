"""Find contradictory built-in profiles: more GPUs of one type with less capacity.

Each profile was measured by someone on a particular engine and setup. Comparing two such profiles
compares engines and setups, not numbers of GPUs. They stay in the catalogue, with a warning
wherever they are used.
"""

from collections.abc import Mapping
from itertools import combinations

from simulation.performance.linear import LinearProfile

CONTRADICTED = "contradicted by a neighbour"
Key = tuple[str, str, int]  # model, GPU type, GPUs per instance
ISL, OSL = 1155.0, 211.0  # tokens: means of Azure's conversations of 2023


def capacity_rps(profile: LinearProfile, isl: float = ISL, osl: float = OSL) -> float:
    """Return the requests/s of one instance that always decodes ``max_batch`` sequences.

    Each request uses the time of its whole prompt. It shares its ``osl`` decode iterations with the
    other sequences of the batch.
    """
    tokens = osl * (profile.alpha_s / profile.max_batch + profile.beta_s)
    return 1.0 / (tokens + isl * profile.delta_s)


def contradictions(known: Mapping[Key, LinearProfile]) -> dict[Key, str]:
    """Return a warning for each profile that contradicts another profile, by key.

    Two profiles contradict each other if a model has less capacity on more GPUs of the same type.
    """
    sentences: dict[Key, str] = {}
    for few, many in combinations(sorted(known), 2):  # the key with fewer GPUs is the first
        on_many, on_few = capacity_rps(known[many]), capacity_rps(known[few])
        if few[:2] != many[:2] or on_many >= on_few:
            continue
        words = (
            f"{CONTRADICTED}: {few[0]} serves {on_many:.1f} requests/s on {many[2]} "
            f"x {few[1]} by {_source(known[many])} and {on_few:.1f} on {few[2]} by "
            f"{_source(known[few])} ({ISL:,.0f} input and {OSL:,.0f} output tokens), though "
            "more GPUs should serve more. Engines or set-ups differ: measure your own"
        )
        for key in (few, many):
            sentences.setdefault(key, words)
    return sentences


def _source(profile: LinearProfile) -> str:
    """Return who measured a profile, in a few words."""
    if profile.provenance.kind != "measured":
        return "what is modelled"
    return profile.provenance.source.removeprefix("ITL: ").split(" ")[0]
