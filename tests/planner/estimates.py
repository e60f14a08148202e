"""Estimates as JSON, as the command line and the REST API give them."""

from typing import Any

from planner.domain.serialise import as_json
from planner.services import estimates


def estimate_one(*asked: Any) -> dict[str, Any]:
    document: dict[str, Any] = as_json(estimates.estimate_one(*asked))
    return document


def estimate_many(*asked: Any) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = as_json(estimates.estimate_many(*asked))
    return documents
