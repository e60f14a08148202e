"""Put the answers of many estimates into one table."""

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
    """Return a table with one row per answer, in the order of ``answers``.

    Column ``refused`` has the reason if an estimate was not possible.
    """
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
    """Return notes on assumed defaults and on inputs outside the measured ranges."""
    return [
        *answer.get("assumptions", ()),
        *(answer.get("expected_error") or {}).get("outside", ()),
    ]
