"""Make names of Kubernetes objects, by default from the attributes of a pool."""

import hashlib
import re
from collections.abc import Iterable, Sequence

from planner.models import DeploymentName


def stored_names() -> dict[str, str]:
    """Return the deployment names that users chose, by default name."""
    return dict(DeploymentName.objects.values_list("rule", "name"))


LABEL = 63  # most characters of a DNS-1123 label, and of the value of a label
LONGEST = 54  # most characters of our names: KEDA names its HPA keda-hpa-NAME, at most 63
HASH = 6  # characters of a hash
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def checked_name(name: str) -> str:
    """Return ``name`` unchanged if Kubernetes accepts it; raise ValueError otherwise."""
    if len(name) > LABEL or not _DNS.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is not a Kubernetes name. Give lower-case letters, digits and hyphens, "
            f"at most {LABEL}, that begin and end with a letter or digit"
        )
    return name


def name_of(parts: Iterable[str]) -> str:
    """Return ``parts`` joined to a DNS-1123 label; a name over LONGEST is cut and gets a hash."""
    text = "-".join(part for part in parts if part)
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if name and len(name) <= LONGEST:
        return name
    beginning = name[: LONGEST - HASH - 1].rstrip("-") or "pool"
    return f"{beginning}-{_hash(text)}"


def _hash(text: str) -> str:
    """Return the first hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH]


def unique_names(
    parts: Sequence[Sequence[str]], further_parts: Sequence[Sequence[str]]
) -> list[str]:
    """Return a unique name for each object, made of its ``parts``.

    Objects with equal names get their ``further_parts`` too. If names are still equal, they end
    with a hash of the position.
    """
    short_names = [name_of(words) for words in parts]
    names = []
    for short_name, words, further_words in zip(short_names, parts, further_parts, strict=True):
        is_unique = short_names.count(short_name) == 1
        names.append(short_name if is_unique else name_of([*words, *further_words]))
    unique = []
    for position, name in enumerate(names):
        if names.count(name) > 1:
            name = f"{name[: LONGEST - HASH - 1]}-{_hash(f'{name} {position}')}"
        unique.append(name)
    return unique


def label_of(text: str) -> str:
    """Return ``text`` as a valid label value; an annotation has the full text."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:LABEL].strip("-_.")
