"""Answers of many estimates as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

FLAT: dict[str, Any] = {
    "model": pl.String, "gpu": pl.String, "mode": pl.String, "ttft_ms": pl.Float64,
    "tbt_ms": pl.Float64, "tokens_per_s": pl.Float64, "power_w": pl.Float64,
    "j_per_token": pl.Float64, "j_per_request": pl.Float64,
    "memory_gb": pl.Float64, "gpus": pl.Float64, "batch": pl.Float64, "profile": pl.String,
}  # fmt: skip
MORE: dict[str, Any] = {
    "expected_error_ttft": pl.Float64,
    "expected_error_tbt": pl.Float64,
    "expected_error_ttft_90": pl.Float64,
    "expected_error_tbt_90": pl.Float64,
    "provenance": pl.String,
    "assumptions": pl.String,
    "refused": pl.String,
}


def answer_table(answers: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """One row per answer, in their order; ``refused`` says why there is none."""
    rows = [
        {name: answer.get(name) for name in FLAT}
        | {
            "expected_error_ttft": (answer.get("expected_error") or {}).get("ttft"),
            "expected_error_tbt": (answer.get("expected_error") or {}).get("tbt"),
            "expected_error_ttft_90": (answer.get("expected_error") or {}).get("ttft_90"),
            "expected_error_tbt_90": (answer.get("expected_error") or {}).get("tbt_90"),
            "provenance": (answer.get("provenance") or {}).get("kind"),
            "assumptions": "; ".join(_notes(answer)) or None,
            "refused": answer.get("refused"),
        }
        for answer in answers
    ]
    return pl.DataFrame(rows, schema=FLAT | MORE)


def _notes(answer: dict[str, Any]) -> list[str]:
    """What was taken for what was not said, and what lies outside the measured ranges."""
    return [
        *answer.get("assumptions", ()),
        *(answer.get("expected_error") or {}).get("outside", ()),
    ]
