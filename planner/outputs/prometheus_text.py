"""Write the text that Prometheus scrapes (exposition format 0.0.4), line by line."""

from collections.abc import Iterator, Mapping


def family(name: str, help_text: str, kind: str = "gauge") -> Iterator[str]:
    """Yield the HELP and TYPE lines of a metric; ``kind`` summary has quantiles."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def labels(of: Mapping[str, str]) -> str:
    """Return the labels of a sample in braces."""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in of.items()) + "}"


def _escaped(text: str) -> str:
    """Escape a label value as the exposition format requires."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
