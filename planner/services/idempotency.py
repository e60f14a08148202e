"""Handle idempotency keys: a repeated request returns the row that the first one made."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import QuerySet

from planner.errors import KeyReused
from planner.models import Calibration, ProfileVersion

Row = TypeVar("Row", Calibration, ProfileVersion)


@dataclass(frozen=True, slots=True)
class Key:
    """The idempotency key that a client sent ("" for none), and a hash of its request."""

    name: str = ""
    sha256: str = ""

    def columns(self) -> dict[str, str]:
        return {"idempotency_key": self.name, "request_sha256": self.sha256}

    def earlier_row(self, rows: QuerySet[Row]) -> Row | None:
        """Return the row that a request with this key made before, or None.

        Raises KeyReused if that was a different request.
        """
        if not self.name:
            return None
        row = rows.filter(idempotency_key=self.name).first()
        if row is not None and row.request_sha256 != self.sha256:
            raise KeyReused.of(self.name, f"{row._meta.verbose_name} {row.pk}")
        return row


def request_key(name: str, request: Any) -> Key:
    """Return the key ``name`` with the hash of a request, which is JSON-ready data."""
    # Sorted keys: the same request must have the same hash.
    text = json.dumps(request, sort_keys=True, default=str)
    return Key(name, hashlib.sha256(text.encode()).hexdigest() if name else "")
