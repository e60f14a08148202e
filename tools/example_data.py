"""Write the data of docs/examples with the demo's generator.

Run it with ``python -m tools.example_data``.
"""

from pathlib import Path

import polars as pl

from planner.inputs.demo import (
    CODE_WEEKDAY,
    CODE_WEEKEND,
    CONV_WEEKDAY,
    CONV_WEEKEND,
    Service,
    demand_week,
)

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
CODE_MODEL, CHAT_MODEL = "llama-3.1-8b", "llama-3.1-70b"
TIERS = {"interactive": 0.47, "relaxed": 0.25, "batch": 0.28}  # SageServe: IW-F, IW-N, NIW
# Mean tokens per request of Azure's code and conversation services, 2024.
SERVICES = (
    Service(CODE_MODEL, 7.0, 2534.0, 22.7, CODE_WEEKDAY, CODE_WEEKEND, TIERS),
    Service(CHAT_MODEL, 6.0, 1631.0, 106.6, CONV_WEEKDAY, CONV_WEEKEND, TIERS),
)
AMOUNTS = ("requests", "input_tokens", "output_tokens")


def sum_by_hour(week: pl.DataFrame, *labels: str) -> pl.DataFrame:
    """Return the sums of a week's demand per hour and label, in order of time."""
    hour = pl.col("time").str.slice(0, 13) + ":00:00Z"
    return (
        week.group_by(hour.alias("time"), *labels)
        .agg(pl.col(name).sum() for name in AMOUNTS)
        .sort("time", *labels)
    )


def files() -> dict[str, pl.DataFrame]:
    """Return the demo files by name: one chat service, and two services in two regions."""
    week = demand_week(SERVICES)
    return {
        "small-week.csv": sum_by_hour(week.filter(pl.col("model") == CHAT_MODEL)),
        "two-services.csv": sum_by_hour(week, "model", "region"),
    }


if __name__ == "__main__":
    for name, table in files().items():
        table.write_csv(FOLDER / name)
