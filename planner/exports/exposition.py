"""The text that Prometheus scrapes (exposition format 0.0.4), line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def family(name: str, help_text: str, kind: str = "gauge") -> Iterator[str]:
    """What stands above the lines of one name; ``kind`` summary: of quantiles."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def labels(of: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in of.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
