"""Write the data of docs/examples from the demo's generator.

Run it with ``python -m planner.inputs.demo.publish``.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from planner.inputs.demo.traffic import demand_week, services

FOLDER = Path(__file__).parents[3] / "docs" / "examples"
CODE_MODEL, CHAT_MODEL = "llama-3.1-8b", "llama-3.1-70b"
AMOUNTS = ("requests", "input_tokens", "output_tokens")


def hourly(week: pl.DataFrame, *labels: str) -> pl.DataFrame:
    """Return the sums per hour and label, in order of time."""
    hour = pl.col("time").str.slice(0, 13) + ":00:00Z"
    return (
        week.group_by(hour.alias("time"), *labels)
        .agg(pl.col(name).sum() for name in AMOUNTS)
        .sort("time", *labels)
    )


def files() -> dict[str, pl.DataFrame]:
    """Return the content of each file: one chat service, and two services in two regions."""
    week = demand_week(services(CODE_MODEL, CHAT_MODEL))
    return {
        "small-week.csv": hourly(week.filter(pl.col("model") == CHAT_MODEL)),
        "two-services.csv": hourly(week, "model", "region"),
    }


if __name__ == "__main__":
    for name, table in files().items():
        table.write_csv(FOLDER / name)
