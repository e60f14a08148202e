"""Shares by name as people write them: "east 60 %, west 40 %"."""

from __future__ import annotations

import re
from typing import Any

from django import forms

_PART = re.compile(
    r"^(?P<name>.*\S)[\s=:]+(?P<share>[0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(?P<sign>%?)$"
)


class SharesField(forms.CharField):
    """A mapping of name to fraction; a name alone means all of it."""

    def to_python(self, value: Any) -> dict[str, float]:
        shares: dict[str, float] = {}
        for part in super().to_python(value).split(","):
            if not part.strip():
                continue
            match = _PART.match(part.strip())
            name = match["name"].strip() if match else part.strip()
            share = float(match["share"]) if match else 1.0
            shares[name] = round(share / 100, 9) if match and match["sign"] else share
        return shares

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return ", ".join(
            f"{name} {100 * share:.6g} %" if isinstance(share, int | float) else f"{name} {share}"
            for name, share in value.items()
        )
