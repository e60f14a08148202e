"""Put the answers of many estimates into one table."""

from collections.abc import Sequence

import polars as pl

from planner.domain.estimate_answer import EstimateAnswer, Refused

ANSWERED: dict[str, type[pl.DataType]] = {  # columns that are fields of an answer
    "model": pl.String, "gpu": pl.String, "mode": pl.String, "ttft_ms": pl.Float64,
    "tbt_ms": pl.Float64, "tokens_per_s": pl.Float64, "power_w": pl.Float64,
    "j_per_token": pl.Float64, "j_per_request": pl.Float64,
    "memory_gb": pl.Float64, "gpus": pl.Float64, "batch": pl.Float64, "profile": pl.String,
}  # fmt: skip
DERIVED: dict[str, type[pl.DataType]] = {
    "expected_error_ttft": pl.Float64,
    "expected_error_tbt": pl.Float64,
    "expected_error_ttft_90": pl.Float64,
    "expected_error_tbt_90": pl.Float64,
    "provenance": pl.String,
    "assumptions": pl.String,
    "refused": pl.String,
}


def answer_table(answers: Sequence[EstimateAnswer | Refused]) -> pl.DataFrame:
    """Return a row per answer; ``refused`` has the reason if an estimate was not possible."""
    return pl.DataFrame([_row(answer) for answer in answers], schema=ANSWERED | DERIVED)


def _row(answer: EstimateAnswer | Refused) -> dict[str, str | float | None]:
    """Return the cells of an answer by column; a refused estimate has only the reason."""
    if isinstance(answer, Refused):
        return {"refused": answer.refused}
    error = answer.expected_error
    return {name: getattr(answer, name) for name in ANSWERED} | {
        "expected_error_ttft": error.ttft,
        "expected_error_tbt": error.tbt,
        "expected_error_ttft_90": error.ttft_90,
        "expected_error_tbt_90": error.tbt_90,
        "provenance": answer.provenance.kind,
        "assumptions": "; ".join((*answer.assumptions, *error.outside)) or None,
    }
