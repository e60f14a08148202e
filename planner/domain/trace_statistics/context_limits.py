"""Count requests that are longer than the context of the model that serves them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from planner.inputs.ingest.store import scan_requests, stored_sessions
from simulation.trace import previous_turns

MAX_COUNTED_REQUESTS = 1_000_000  # requests whose repeated prompts are counted
CACHED_TRACES = 256  # traces whose longest request is kept
TOTAL_TOKENS = pl.col("input_tokens").cast(pl.Int64) + pl.col("output_tokens").cast(pl.Int64)
EVERY_LABEL = ""  # key of the model that serves all requests of a trace


@dataclass(frozen=True, slots=True)
class BeyondContext:
    """Requests of one label whose prompt and answer together exceed a model's context."""

    label: str  # name of the model in the trace; EVERY_LABEL: all requests
    model: str  # name in the catalogue
    context: int  # tokens
    requests: int
    longest: int  # tokens of the longest request


def requests_beyond_context(
    store_dir: Path | str, contexts: Mapping[str, tuple[str, int]]
) -> tuple[BeyondContext, ...]:
    """Return the labels with requests that exceed the context of their model, most requests first.

    ``contexts`` maps a label of the trace to (name of the model, its context in tokens). If one
    model serves all requests, its label is ``EVERY_LABEL``. () if no request is too long.
    """
    shortest_context = min(context for _, context in contexts.values())
    if longest_request(store_dir) <= shortest_context:
        return ()
    _, requests = scan_requests(store_dir)
    has_labels = EVERY_LABEL not in contexts
    label = pl.col("model").fill_null("") if has_labels else pl.lit(EVERY_LABEL)
    lengths = requests.select(TOTAL_TOKENS.alias("total"), label.alias("label"))
    long_requests = lengths.filter(pl.col("total") > shortest_context)
    # Numbers of requests (``len``) by label and tokens.
    counts = long_requests.group_by("label", "total").len().collect(engine="streaming")
    rows = []
    for name, (model, context) in contexts.items():
        beyond = counts.filter(pl.col("label") == name, pl.col("total") > context)
        if beyond.height:
            count, longest = int(beyond["len"].sum()), max(beyond["total"].to_list())
            rows.append(BeyondContext(name, model, context, count, longest))
    return tuple(sorted(rows, key=lambda row: -row.requests))


@lru_cache(maxsize=CACHED_TRACES)  # a stored trace does not change
def longest_request(store_dir: Path | str) -> int:
    """Return the tokens of the longest request of a stored trace, prompt and answer together."""
    _, requests = scan_requests(store_dir)
    return int(requests.select(TOTAL_TOKENS.max()).collect(engine="streaming").item() or 0)


def repeated_blocks(store_dir: Path | str) -> float:
    """Return the share of prompt tokens that repeats earlier ones; 0 if the file does not show it.

    Prefix caches can save no more than this share. It is counted from block hashes of the first
    ``MAX_COUNTED_REQUESTS`` requests. Without hashes, each growing prompt of a session is assumed
    to begin with the prompt before.
    """
    _, requests = scan_requests(store_dir)
    if "hash_ids" not in requests.collect_schema().names():
        return _repeated_in_sessions(requests.head(MAX_COUNTED_REQUESTS))
    blocks = (
        requests.select("hash_ids").head(MAX_COUNTED_REQUESTS).select(pl.col("hash_ids").explode())
    )
    counts = blocks.drop_nulls().select(pl.len().alias("all"), pl.col("hash_ids").n_unique())
    total, distinct = counts.collect(engine="streaming").row(0)
    return 1 - distinct / total if total else 0.0


def _repeated_in_sessions(requests: pl.LazyFrame) -> float:
    """Return the share of input tokens that repeat a shorter prompt before in their session."""
    session = stored_sessions(requests)
    if session is None:
        return 0.0
    tokens = requests.select("input_tokens").collect()["input_tokens"].to_numpy().astype(np.int64)
    before = previous_turns(session)  # index of the session's previous request; negative: none
    previous_tokens = np.where(before >= 0, tokens[before], 0)
    repeated = np.where(previous_tokens <= tokens, previous_tokens, 0)
    return float(repeated.sum() / max(1, tokens.sum()))
