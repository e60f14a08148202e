"""Read the catalogue's YAML files."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
# libyaml (if PyYAML has it) is ten times as fast as Python, and pages wait for these files.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """A YAML loader with the scalars of YAML 1.2, as in scenarios: NO is Norway, 1e-14 a number."""

    yaml_implicit_resolvers: dict[str, Any] = {}


for tag, form, first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("timestamp", r"\d{4}-\d\d-\d\d", list("0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{form})$"), first)


@cache
def read(name: str) -> Any:
    """Return a catalogue file as parsed data; the data is cached, so callers must not change it."""
    return yaml.load((FOLDER / f"{name}.yaml").read_bytes(), Loader=_Loader)  # noqa: S506 - safe
