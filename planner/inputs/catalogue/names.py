"""Resolve names of GPU types and models: one entry has many names."""

import difflib
import re
from collections.abc import Iterable, Mapping

from planner.errors import CatalogueError
from simulation.performance.specs import BYTES

# Endings of repository names that change neither shape nor context: tuning, date, format.
ENDINGS = re.compile(
    r"-(instruct|chat|it|pt|base|hf|paddle|think|thinking|(nv)?fp4-v2|fp8|nvfp4|fp4|mxfp4|awq|gptq|int4|int8|bf16|bfloat16|fp16"
    r"|w8a8|w4a16|kv|bnb|[48]bit|qat|gguf|dynamic|static|pertensor|block|\d{4}|v0\.1|v1(\.\d)?"
    r"|quantized\.\w+|tput)$"
)
VENDORS = re.compile(r"^(meta-llama-|nvidia-(?=nemotron)|meta-(?=llama))")
PRECISION = {
    "fp8": "fp8", "nvfp4": "fp4", "fp4": "fp4", "mxfp4": "fp4", "awq": "int4", "gptq": "int4",
    "int4": "int4", "int8": "int8", "w8a8": "int8", "w4a16": "int4", "bf16": "bf16",
    "bfloat16": "bf16", "fp16": "bf16", "4bit": "int4", "8bit": "int8",
}  # fmt: skip


def plain_name(name: str) -> str:
    """Return a name in the form for comparison: no organisation, lower case, hyphens."""
    last = name.strip().rsplit("/", 1)[-1].lower()
    return re.sub(r"[\s_]+", "-", last)


def aliases(entries: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """Return the canonical name by the plain form of every name.

    ``entries`` are (canonical name, other names). Raise ValueError if two entries share a name.
    """
    canonical_of: dict[str, str] = {}
    for canonical, other_names in entries:
        for name in (canonical, *other_names):
            if canonical_of.setdefault(plain_name(name), canonical) != canonical:
                raise ValueError(
                    f"{name} is a name of {canonical_of[plain_name(name)]} and of {canonical}"
                )
    return canonical_of


def find_model(name: str, known: Mapping[str, str]) -> str | None:
    """Return the canonical name of a model by any of its names; None if it is unknown.

    ``known`` is the result of ``aliases``. A vendor's prefix and usual endings are ignored.
    """
    short = plain_name(name)
    while True:
        for form in (short, VENDORS.sub("", short)):
            if form in known:
                return known[form]
        shorter = ENDINGS.sub("", short)
        if shorter == short:
            return None
        short = shorter


def stated_precision(name: str) -> str | None:
    """Return the (lower) weight precision in a repository's name, such as ``-FP8``, or None."""
    parts = re.split(r"[-.]", plain_name(name))
    precisions = [PRECISION[part] for part in parts if part in PRECISION]
    return min(precisions, key=BYTES.__getitem__) if precisions else None


class UnknownName(CatalogueError):
    """A name is not in the catalogue; ``nearest`` has the most similar names of ``known``."""

    def __init__(self, what: str, name: str, known: Mapping[str, str]) -> None:
        forms = difflib.get_close_matches(plain_name(name), known, n=8, cutoff=0.0)
        self.nearest = ", ".join(dict.fromkeys(known[form] for form in forms))
        short_name = name if len(name) <= 100 else f"{name[:100]}..."
        super().__init__(f"{what} {short_name!r} is not built in. The nearest are {self.nearest}.")
