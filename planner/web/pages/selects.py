"""Define the fields by which a user chooses what a part of a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from planner.domain.results.stored import StoredResult


@dataclass(frozen=True, slots=True)
class Select:
    """A field with one chosen value; ``choices`` maps values to labels.

    templates/web/_selects.html shows the fields of a part, without those of a single choice.
    """

    name: str  # parameter of the address
    label: str
    choices: Mapping[str, str]
    chosen: str

    @classmethod
    def of(
        cls, params: Mapping[str, str], name: str, label: str, choices: Mapping[str, str],
        default: str = "",
    ) -> Select:  # fmt: skip
        """Return the field with the value in ``params``, or ``default``, or else the first choice.

        Only a value among the choices is taken. The value is "" without any choice.
        """
        chosen = next(iter(choices), "")
        if default in choices:
            chosen = default
        if params.get(name) in choices:
            chosen = params[name]
        return cls(name, label, choices, chosen)


def policy_select(params: Mapping[str, str], result: StoredResult, table: pl.DataFrame) -> Select:
    """Return the field for a policy of ``table``; the default is the recommended one, if any."""
    default = result.default_policy or str(table["policy"][0])
    return Select.of(params, "policy", "Policy", result.labels or {default: default}, default)
