"""Handle idempotency keys: a repeated request returns the row that the first one stored."""

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
    """The idempotency key that a client sent with a request."""

    name: str = ""  # as the client sent it; "": none
    sha256: str = ""  # of the request, to tell whether a later one is the same

    def columns(self) -> dict[str, str]:
        """Return the columns to store with the row that the request makes."""
        return {"idempotency_key": self.name, "request_sha256": self.sha256}

    def earlier_row(self, rows: QuerySet[Row]) -> Row | None:
        """Return the one of ``rows`` that an earlier request with this key stored; else None.

        Raises KeyReused if that request was a different one.
        """
        if not self.name:
            return None
        row = rows.filter(idempotency_key=self.name).first()
        if row is not None and row.request_sha256 != self.sha256:
            raise KeyReused.of(self.name, f"{row._meta.verbose_name} {row.pk}")
        return row


def request_key(name: str, request: Any) -> Key:
    """Return the key ``name`` with the hash of ``request``, any data that json can write."""
    # Sort the keys, so that the same request has the same hash.
    text = json.dumps(request, sort_keys=True, default=str)
    return Key(name, hashlib.sha256(text.encode()).hexdigest() if name else "")
