"""Read and write shares by name as text: "east 60 %, west 40 %"."""

from __future__ import annotations

import re
from typing import Any

from django import forms

MAX_CHARACTERS = 5_000  # the time of the pattern grows with the square of a part's length

# After = or : any number is a share. After a blank only a percentage or a fraction such as 0.6 is,
# since names may end in numbers.
_PART = re.compile(
    r"^(?P<name>.*?[^\s=:])(?:\s*[=:]\s*(?P<given>\d*\.?\d+)\s*(?P<sign>%?)"
    r"|\s+(?P<percent>\d*\.?\d+)\s*%|\s+(?P<fraction>0?\.\d+))$"
)


class SharesField(forms.Field):
    """A mapping of name to fraction; a name without a number means the whole."""

    def to_python(self, value: Any) -> dict[str, float]:
        shares: dict[str, float] = {}
        if len(str(value or "")) > MAX_CHARACTERS:
            raise forms.ValidationError(
                f"Shares have at most {MAX_CHARACTERS:,} characters. Edit longer ones as YAML."
            )
        for part in str(value or "").split(","):
            if not part.strip():
                continue
            match = _PART.match(part.strip())
            if match is None:
                shares[part.strip()] = 1.0
                continue
            number = float(match["given"] or match["percent"] or match["fraction"])
            hundredths = match["sign"] or match["percent"]
            shares[match["name"]] = round(number / 100, 9) if hundredths else number
        return shares

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return ", ".join(
            f"{name} {100 * share:.6g} %" if isinstance(share, int | float) else f"{name} {share}"
            for name, share in value.items()
        )
