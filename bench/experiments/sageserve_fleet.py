"""SageServe's longer runs: a week of one model (figure 16b), and four models at once over three
regions, which take over what others lent out."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl

from bench.decisions.data import CODE
from bench.experiments.sageserve_day import (
    ARRIVALS,
    MODEL,
    Service,
    lengths,
    profile,
    scenario_of,
    with_bursts,
)
from bench.experiments.sageserve_day import store_trace as stored_as
from planner.domain.outcome import Inputs
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.study import Study
from planner.inputs import catalogue
from planner.inputs.scenario.document import parse

MONDAY, DAYS = date(2024, 5, 13), 6  # to Saturday: of its week the trace has Sunday before it
BUSIEST = date(2024, 5, 16)
# Three of the source's models, and Llama 3.1 70B for Llama 3.2 3B, which was measured on A100 alone
# (where too few prompts of Bloom are ready in time). With the service of the trace that asks each
# and its share (assumed).
GPU = "H100-SXM"
MODELS = {
    "bloom-176b": (8, "conv", 0.5), "llama-2-70b": (8, "conv", 0.5),
    "llama-3.1-70b": (4, "code", 0.5), "llama-3.1-8b": (2, "code", 0.5),
}  # fmt: skip
STARTS = {"reclaim_s": 60, "other_model_s": 600}  # section 3


def week(folder: Path, scale: float) -> Study:
    """Return the study of six days of Llama-2 70B's conversations."""
    table = _arrivals().filter(pl.col("service") == "conv")
    service = Service(MODEL["name"], MODEL, profile("H100-SXM"), "conv", scale, lengths())
    scenario = scenario_of([service], scale, MONDAY, days=DAYS)
    return study_of(
        Inputs(parse(json.dumps(scenario)), {"t": stored_as(table, folder, "week")}), silent
    )


def fleet(folder: Path, scale: float, bursts: float = 1.0) -> Study:
    """Return the study of four models in three regions on the busiest day.

    For ``bursts`` see ``Day``.
    """
    table = _arrivals().filter(pl.col("time_utc").dt.date() <= BUSIEST)
    table = with_bursts(table, BUSIEST, bursts)
    asked = {"conv": lengths(), "code": (CODE["input_tokens"], CODE["output_tokens"])}
    services = [
        Service(name, _model(name), profile(GPU, name, tp), of, share * scale, asked[of])
        for name, (tp, of, share) in MODELS.items()
    ]
    scenario = scenario_of(services, scale, BUSIEST, gpu=GPU, starts=STARTS)
    return study_of(
        Inputs(parse(json.dumps(scenario)), {"t": stored_as(table, folder, f"fleet{bursts:g}")}),
        silent,
    )


def _model(name: str) -> dict[str, Any]:
    """Return the built-in model without a limit of context, as in the source's simulator.

    A tenth of the prompts is longer than the context of Bloom.
    """
    spec = catalogue.models()[name]
    return {
        "name": name,
        "weight_gb": spec.weight_bytes / 1e9,
        "kv_bytes_per_token": spec.kv_bytes_per_token,
        "max_context": MODEL["max_context"],
        "source": "as built in, without its limit of context",
    }


def _arrivals() -> Any:
    table = pl.read_csv(ARRIVALS, try_parse_dates=True)
    return table.filter(pl.col("time_utc").dt.date() < date(2024, 5, 19))  # ends with a stray row
