"""Read a request file without output lengths.

The requests are counted per bin, and the prompt lengths are kept as a sample. Only the output
lengths are left to assume.
"""

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl

from planner.inputs.ingest.demand import demand_figures
from planner.inputs.ingest.file_content import Content, Reading
from planner.inputs.ingest.grid import AMOUNTS, Grid, grids_of, number_keys
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.requests import read_request_file
from planner.inputs.ingest.source import base_name
from planner.inputs.ingest.store import LENGTHS, REQUESTS, write_demand

BIN_S = 10  # as in public traces of counts; a study sums them to its own bins
BIN_NS = BIN_S * 1_000_000_000
SAMPLE = 20_000  # largest number of prompt lengths kept per series


def read_arrivals(reading: Reading) -> Content:
    """Read one row per request; count requests (0 if none) and prompt tokens per ten seconds.

    Write these counts and a sample of prompt lengths, and return what the report needs.
    """
    content = read_request_file(reading, answers=False)
    parts_folder = reading.folder / REQUESTS
    ns = (pl.col("arrival_s") * 1e9).round().cast(pl.Int64) + content.start_ns
    requests = pl.scan_parquet(sorted(parts_folder.glob("*.parquet"))).select(
        *LABELS, tokens="input_tokens", ns=ns // BIN_NS * BIN_NS
    )
    # The amounts by labels and bin, as the rows that ``grids_of`` takes.
    amounts = requests.group_by(*LABELS, "ns", maintain_order=True).agg(
        requests=pl.len().cast(pl.Float64), input_tokens=pl.col("tokens").sum().cast(pl.Float64)
    )
    unknown = {field: pl.lit(np.nan) for field in AMOUNTS[2:]}  # all but these two
    bins = amounts.with_columns(line=pl.lit(0), **unknown).collect(engine="streaming")
    bins, keys = number_keys(bins, LABELS)
    # The number of requests by labels and prompt length.
    by_length = requests.group_by(*LABELS, "tokens").agg(requests=pl.len().cast(pl.Float64))
    prompts = by_length.collect(engine="streaming")
    shutil.rmtree(parts_folder)
    identities = []
    for labels in keys.select(LABELS).iter_rows(named=True):
        name = " / ".join(filter(None, labels.values())) or base_name(reading.name)
        identities.append({"name": name, **labels})
    grids = grids_of(bins.sort("number", "ns"), identities, BIN_NS, reading.name, zero=True)
    write_demand(reading.folder, grids)
    _sample(prompts, keys, grids).write_parquet(reading.folder / LENGTHS)
    note = (
        f"Its requests are counted by {BIN_S} s and their prompts kept as a sample. The file has "
        "no output lengths, so a scenario assumes them."
    )
    return replace(
        content,
        notes=(*content.notes, note),
        reasoning_tokens=None,
        cancelled=0,
        unanswered=0,
        **demand_figures(grids, content.time_format.kind),
    )


def _sample(prompts: pl.DataFrame, keys: pl.DataFrame, grids: list[Grid]) -> pl.DataFrame:
    """Return a sample of prompt lengths for each series: columns series, field and tokens.

    The sample has up to SAMPLE lengths at evenly spaced ranks. ``prompts`` has the number of
    requests by labels and length, ``keys`` the labels of each series, in the order of ``grids``.
    """
    counts = prompts.join(keys, on=list(LABELS), how="left", nulls_equal=True)
    counts = counts.sort("number", "tokens")
    requests = counts["requests"].to_numpy()
    # The rows of each series follow each other; its first row is the edge before it.
    edges = np.searchsorted(counts["number"].to_numpy(), np.arange(len(grids) + 1))
    sampled_rows = []  # of ``counts``, by series
    for first, end in pairwise(edges.tolist()):
        requests_up_to = np.cumsum(requests[first:end])  # of this length or a shorter one
        points = min(SAMPLE, int(requests_up_to[-1]))
        ranks = (np.arange(points) + 0.5) / points * requests_up_to[-1]
        sampled_rows.append(first + np.searchsorted(requests_up_to, ranks))
    names = pl.Series("series", [grid.identity["name"] for grid in grids], dtype=pl.String)
    series = np.repeat(np.arange(len(grids)), [len(rows) for rows in sampled_rows])
    return pl.DataFrame(
        {
            "series": names.gather(series),
            "field": pl.Series(["input_tokens"]).new_from_index(0, len(series)),
            "tokens": counts["tokens"].cast(pl.Float64).gather(np.concatenate(sampled_rows)),
        }
    )
