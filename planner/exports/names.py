"""Names of Kubernetes objects: by rule from what a pool is, or as somebody maps them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

LABEL = 63  # characters of a DNS-1123 label, and of the value of a label
LONGEST = 54  # KEDA calls its autoscaler keda-hpa-NAME, a label too
HASH = 6
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def checked_name(name: str) -> str:
    """Raises ValueError where Kubernetes would refuse it."""
    if len(name) > LABEL or not _DNS.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name for Kubernetes: give small letters, digits and hyphens, at "
            f"most {LABEL}, that begin and end with a letter or digit"
        )
    return name


def name_of(parts: Iterable[str], longest: int = LONGEST) -> str:
    """``parts`` as one DNS-1123 label; what is too long ends with a hash of the whole."""
    text = "-".join(part for part in parts if part)
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if name and len(name) <= longest:
        return name
    return f"{name[: longest - HASH - 1].rstrip('-') or 'pool'}-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH]


def told_apart(parts: Sequence[Sequence[str]], more: Sequence[Sequence[str]]) -> list[str]:
    """A name of each, with what ``more`` says of it where its ``parts`` alone are another's too,
    and with a hash of its place where even those are."""
    short = [name_of(part) for part in parts]
    names = [
        name if short.count(name) == 1 else name_of([*parts_of_name, *other])
        for name, parts_of_name, other in zip(short, parts, more, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name[: LONGEST - HASH - 1]}-{_hash(f'{name} {i}')}"
        for i, name in enumerate(names)
    ]


def label_of(text: str) -> str:
    """``text`` as the value of a label; the annotation beside it has it in full."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:LABEL].strip("-_.")
