"""Encode one line of the profile select: a deployment, and its stored profile if it has one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django import forms

from planner.domain.formats import proper_name
from planner.selectors.lookup import id_of
from planner.web.forms.widgets import LongSelect
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import BYTES

COMPUTED = "roofline"
ROLES = ("prefill", "decode")  # roles with a profile of their own


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """A choice of a profile in a select: the fields that distinguish it.

    A stored profile has ``name`` and ``version``.
    """

    model: str
    gpu: str
    tp: int = 1
    name: str = ""
    version: int | None = None  # None: the newest
    role: str = ""  # of a profile for prefill only or decode only
    kind: str = ""  # roofline: computed from the model's shape
    precision: str = ""  # of the weights, if not 16 bits
    engine: str = ""  # engine whose host time the profile has

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ProfileChoice:
        """Return the choice for a row of the document's profiles."""
        tp = row.get("tp")
        version = row.get("version") if row.get("name") else None
        return cls(
            model=str(row.get("model")),
            gpu=str(row.get("gpu")),
            tp=tp if isinstance(tp, int) else 1,
            name=str(row.get("name") or ""),
            version=version if isinstance(version, int) and version else None,
            role=row["role"] if row.get("role") in ROLES else "",
            kind=COMPUTED if row.get("kind") == COMPUTED and not row.get("name") else "",
            precision=_unless_default(row.get("precision"), BYTES, "bf16"),
            engine=_unless_default(row.get("engine"), ENGINES, ""),
        )

    def row(self) -> dict[str, Any]:
        """Return the choice as a row of the document."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in values.items() if value}

    def encode(self) -> str:
        """Return the choice as the value of an option in a select."""
        return urlencode(self.row())

    @classmethod
    def decode(cls, text: str) -> ProfileChoice:
        """Return the choice that ``encode`` wrote as ``text``; raise ValueError for other text."""
        parts: dict[str, Any] = dict(parse_qsl(text, strict_parsing=True))
        for key in ("tp", "version"):
            if key in parts:
                parts[key] = id_of(parts[key])
                if parts[key] is None:
                    raise ValueError(f"{key} is not a number")
        try:
            choice = cls(**parts)
        except TypeError as error:  # a field is missing or unknown
            raise ValueError(str(error)) from None
        for value, known in (
            (choice.role, ROLES), (choice.kind, (COMPUTED,)), (choice.precision, BYTES),
            (choice.engine, ENGINES),
        ):  # fmt: skip
            if value and value not in known:
                raise ValueError(value)
        return choice

    @property
    def label(self) -> str:
        """Return the profile in words, with its name, kind, precision and engine if stated."""
        text = f"{self.model} on {self.tp} x {self.gpu}"
        if self.name:
            version = f"version {self.version}" if self.version else "newest version"
            text += f" ({self.name}, {version})"
        engine = proper_name(self.engine)
        stated = [part for part in (self.kind, self.precision, engine) if part]
        return f"{text} ({', '.join(stated)})" if stated else text


def _unless_default(value: Any, known: Collection[str], default: str) -> str:
    """Return a known value as text; "" for the default and for unknown values."""
    return str(value) if value in known and value != default else ""


class ProfileField(forms.Field):
    """A select field for a ProfileChoice; the form gives the choices to its widget."""

    widget = LongSelect

    def to_python(self, value: Any) -> ProfileChoice | None:
        """Return the choice that a form sent as text; None if empty."""
        if not value:
            return None
        try:
            return ProfileChoice.decode(value)
        except ValueError:
            raise forms.ValidationError("Choose one of the list.") from None

    def prepare_value(self, value: Any) -> Any:
        return value.encode() if isinstance(value, ProfileChoice) else value
