"""What the tests of the application start from: a scenario, figures, a table, a script's client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
from rest_framework.test import APIClient

from planner.models import User
from planner.services.tokens import token_create

START = datetime(2024, 5, 18, tzinfo=UTC)
DOCUMENT = """\
# Kept for the meeting in June.
version: 1
name: Chat
seed: 7
models: [llama-3.1-8b]  # one is enough
profiles:
  - {model: llama-3.1-8b, gpu: H100, tp: 1}
regions:
  - name: east
    capacity: {H100: 64}
tiers:
  - {name: interactive, ttft_ms: 1000}
traffic:
  sources:
    - trace: conv
      model: llama-3.1-8b
      regions: {east: 1}
      tiers: {interactive: 1}
horizon:
  period_s: 3600  # an hour
"""
RESULT: dict[str, Any] = {
    "kind": "compare",
    "scenario": "Chat",
    "policies": {
        "flat-peak": {"gpu_hours": 20.0, "cost_usd": 80.0, "energy_kwh": 8.0, "carbon_kg": 2.0},
        "lt-i": {"gpu_hours": 15.0, "cost_usd": 60.0, "energy_kwh": 7.0, "carbon_kg": 0.0},
    },
    "baselines": ["flat-peak"],
    "baseline": "flat-peak",
    "ranking": ["lt-i", "flat-peak"],
}


def client_of(user: User | None) -> APIClient:
    """A script with the user's token; without a user a stranger."""
    client = APIClient()
    if user is not None:
        client.credentials(HTTP_AUTHORIZATION=f"Token {token_create(user=user).key}")
    return client


def demand_table(rows: int) -> pl.DataFrame:
    """One row per quarter of an hour; the second has a gap."""
    return pl.DataFrame(
        {
            "time": [START + timedelta(seconds=900 * i) for i in range(rows)],
            "model": ["llama-3.1-8b"] * rows,
            "requests": [float("nan") if i == 1 else i * 1.5 for i in range(rows)],
        }
    )
