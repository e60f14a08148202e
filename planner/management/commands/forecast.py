"""``bin/manage forecast``: forecast the demand after a trace, or in the window of a scenario."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from planner.domain.kinds.forecast import Options, TraceOptions
from planner.errors import PlannerError
from planner.management.base import HeadroomCommand, execute, load_scenario, load_trace
from planner.management.options import add_options, flag_of, options_said
from planner.models import Run, Scenario
from planner.outputs.table_text import table_lines
from planner.services.runs import run_create

COLUMNS = {
    "model": "model", "region": "region", "tier": "tier", "method": "method", "order": "order",
    "WAPE": "wape:.1%", "peak WAPE": "peak_wape:.1%", "unit": "unit", "next bins": "ahead",
}  # fmt: skip


class Command(HeadroomCommand):
    help = "Forecast a demand or trace file, a stored trace, or the window of a scenario."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("source", help="file, stored trace, or scenario file")
        add_options(parser, TraceOptions, leave_out=("origins",))
        parser.add_argument("--backtest", action="store_true", help="errors over past origins")
        parser.add_argument("--origins", type=int, default=24, help="origins of the backtest")

    def answer(self, options: dict[str, Any]) -> dict[str, Any]:
        source = options["source"]
        if options["origins"] < 1:
            raise PlannerError(f"--origins {options['origins']}: give 1 or more.")
        origins = options["origins"] if options["backtest"] else None
        scenario = Path(source).suffix in (".yml", ".yaml")
        if scenario or Scenario.objects.filter(name=source).exists():
            for name in ("bin_s", "horizon_s", "backtest"):
                if options[name]:
                    raise PlannerError(
                        f"{flag_of(name)} is for a trace; a scenario says it in traffic.bin_s and "
                        "horizon."
                    )
            document, name = load_scenario(source, self.progress)
            run = run_create(
                owner=None,
                kind=Run.Kind.FORECAST,
                document=document,
                name=name,
                options=options_said(Options, options),
                enqueue=False,
            )
            return execute(run, self.progress)
        run = run_create(
            owner=None,
            kind=Run.Kind.FORECAST,
            trace=load_trace(source, self.progress),
            options=options_said(TraceOptions, options | {"origins": origins}),
            enqueue=False,
        )
        return execute(run, self.progress)

    def words(self, answer: dict[str, Any]) -> str:
        series = [
            row | {"ahead": ", ".join(f"{value:,.0f}" for value in row["forecast"][:6])}
            for row in answer["series"]
        ]
        units = {row["unit"] for row in series}
        notes = [
            f"{_series(row, units)}: {row[name]}"
            for name in ("note", "reason", "cleaned")
            for row in series
            if row.get(name)
        ]
        drifts = [
            f"{_series(row, units)}: drift since {row['drift']['since']}: "
            f"{row['drift']['sentence']}"
            for row in series
            if (row.get("drift") or {}).get("flagged")
        ]
        first = [answer["headline"]] if answer.get("headline") else []
        why = [
            f"planned for {row['tier']}: {_height(row)}. {row['why']}"
            for row in (answer.get("forecast") or {}).get("quantile", ())
        ]
        noted = [] if first else answer.get("notes", [])
        return "\n".join([*first, *drifts, *notes, *table_lines(series, COLUMNS), *why, *noted])


def _series(row: dict[str, Any], units: set[str]) -> str:
    """Return the name of a series, with its unit if there are several units."""
    name = f"{row['model']} / {row['region']} / {row['tier']}"
    return f"{name}, {row['unit'].replace('_', ' ')}" if len(units) > 1 else name


def _height(row: dict[str, Any]) -> str:
    """Return the level of the forecast that the plan uses, as text."""
    level = row["quantile"]
    what = "the mean" if level is None else f"the quantile {level:g}"
    return what if row["times"] == 1 else f"{row['times']:g} times {what}"
