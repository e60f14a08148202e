"""Write and read the column store of one trace: a folder of Parquet files and ``meta.json``.

``requests/part-00000.parquet`` and on hold requests in order of arrival. Columns: arrival_s
(seconds from the first request), input_tokens, output_tokens. Also model, region and tier (text,
null if unknown). If the file has them, also cached_tokens (part of the input), reasoning_tokens
(part of the output), hash_ids and utility (worth of serving the request, null without a number).
Sessions are hashes of names: session, or request_id and the parent before it. think_s has the
seconds between the answer before a turn and the turn.

``demand.parquet``: series, model, region, tier, bin_start_s. Per bin also requests, input_tokens,
output_tokens, total_tokens (null for a gap).

``lengths.parquet``, if lengths are sampled: series, field (input_tokens, output_tokens) and a
sample of tokens per request.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.errors import DamagedFile, IngestError, PlannerError
from planner.files.damage import damage_reported
from planner.inputs.ingest.grid import AMOUNTS, Grid, number_keys
from planner.inputs.ingest.options import LABELS
from planner.inputs.ingest.report import IngestReport
from simulation.arrays import CodeArray, FloatArray, Int32Array, IntArray

META = "meta.json"
DEMAND = "demand.parquet"
LENGTHS = "lengths.parquet"
REQUESTS = "requests"
STORED = "A stored file of the trace"
AGAIN = "send the file of this trace again, or restore a backup"
MAX_BINS = 20_000_000  # of all series of one trace, 24 bytes each
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", *LABELS)
HASHES = ("hash_ids", "hash_offsets")
SESSION = "session"
THINK = "think_s"
TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
DTYPES = {"arrival_s": np.float64, THINK: np.float64, **dict.fromkeys(TOKENS, np.int32)}


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """Requests in order of arrival; every array has shape ``[requests]`` and is read-only.

    A column that the caller did not ask for is None. Labels are indices into the tuples of names. A
    request without a label has the name "".
    """

    start_s: float  # epoch seconds of arrival_s == 0
    clock: str  # report.UTC or report.RELATIVE
    provenance: str
    arrival_s: FloatArray | None
    input_tokens: Int32Array | None
    output_tokens: Int32Array | None
    model: CodeArray | None
    region: CodeArray | None
    tier: CodeArray | None
    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    hash_ids: IntArray | None  # ids of all requests, concatenated
    hash_offsets: IntArray | None  # [requests + 1]: first id of each request
    cached_tokens: Int32Array | None = None  # input tokens from a prefix cache
    # Session of each request from 0 on, -1: none. None: no session has two requests.
    session: Int32Array | None = None
    think_s: FloatArray | None = None  # from the answer before a turn to the turn


@dataclass(frozen=True, slots=True, eq=False)
class DemandColumns:
    """Amounts per bin of one series, shape ``[bins]``, read-only; NaN is a gap.

    A token column that the file does not count is None. In a file without requests, ``requests`` is
    all NaN.
    """

    name: str
    model: str | None
    region: str | None
    tier: str | None
    start_s: float  # left edge of the first bin, epoch seconds
    bin_s: float
    requests: FloatArray
    input_tokens: FloatArray | None
    output_tokens: FloatArray | None
    total_tokens: FloatArray | None
    input_lengths: FloatArray | None = None  # sample of tokens per request, if known
    output_lengths: FloatArray | None = None
    cached_tokens: FloatArray | None = None  # input tokens from a prefix cache

    @property
    def end_s(self) -> float:
        """Return the right edge of the last bin, in epoch seconds."""
        return self.start_s + len(self.requests) * self.bin_s


def write_report(folder: Path, report: IngestReport) -> None:
    """Write the report, which completes a stored trace."""
    (folder / META).write_text(json.dumps(report.as_dict()), encoding="utf-8")


def read_report(store_dir: Path | str) -> IngestReport:
    """Return the stored report; raise IngestError if it is absent, DamagedFile if it is broken."""
    if not (Path(store_dir) / META).is_file():
        raise IngestError("The stored trace is not complete (no meta.json). Read its file again.")
    try:
        text = (Path(store_dir) / META).read_text(encoding="utf-8")
        return IngestReport.from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DamagedFile(f"The stored file {META} is damaged; {AGAIN}.") from None


def write_demand(folder: Path, grids: Sequence[Grid]) -> None:
    """Write every bin of every series; gaps are null."""
    series = np.repeat(np.arange(len(grids)), [grid.bins for grid in grids])
    columns = {}
    for label in ("name", *LABELS):
        names = pl.Series([grid.identity[label] for grid in grids], dtype=pl.String)
        columns["series" if label == "name" else label] = names.gather(series)
    starts_ns = [grid.start_ns + np.arange(grid.bins) * grid.bin_ns for grid in grids]
    columns["bin_start_s"] = pl.Series(np.concatenate(starts_ns) / 1e9)
    for field in AMOUNTS:
        amounts = np.concatenate([grid.amounts[field] for grid in grids])
        columns[field] = pl.Series(amounts).fill_nan(None)
    pl.DataFrame(columns).write_parquet(folder / DEMAND)


def _lengths_of(store_dir: Path | str) -> dict[tuple[str, str], FloatArray]:
    """Return the samples of lengths by (series, field); empty for a trace without them."""
    store = Path(store_dir)
    if not (store / LENGTHS).is_file():
        return {}
    parts = pl.read_parquet(store / LENGTHS).partition_by("series", "field", as_dict=True)
    return {
        (str(series), str(field)): _read_only(part["tokens"].to_numpy(writable=True))
        for (series, field), part in parts.items()
    }


def request_parts(store_dir: Path | str) -> list[Path]:
    """Return the stored parts in order of arrival; raise DamagedFile if there are none."""
    parts = sorted((Path(store_dir) / REQUESTS).glob("*.parquet"))
    if not parts:
        raise DamagedFile(f"The stored requests are missing; {AGAIN}.")
    return parts


def is_complete(store_dir: Path | str) -> bool:
    """Return whether the report is stored with all requests or bins that it states."""
    try:
        report = read_report(store_dir)
        if report.kind == "demand":
            return (Path(store_dir) / DEMAND).is_file()
        rows = pl.scan_parquet(request_parts(store_dir)).select(pl.len()).collect().item()
        return int(rows) == report.requests
    except PlannerError:
        return False


def scan_requests(store_dir: Path | str) -> tuple[IngestReport, pl.LazyFrame]:
    """Return the report and the rows of a request trace; raise IngestError for a demand file."""
    report = read_report(store_dir)
    if report.kind != "requests":
        raise IngestError(f"{report.trace} holds demand per bin, not requests. Use it as such.")
    return report, pl.scan_parquet(request_parts(store_dir))


def _check_bins(bins: int, bin_s: float) -> None:
    """Raise IngestError if a trace has too many bins, all series together."""
    if bins > MAX_BINS:
        raise IngestError(
            f"Bins of {bin_s:g} s cut this trace into {bins:,}, all series together, and "
            f"{MAX_BINS:,} are allowed. Choose a larger bin width."
        )


@damage_reported(STORED, AGAIN)
def read_requests(store_dir: Path | str, columns: Sequence[str] | None = None) -> RequestColumns:
    """Return stored requests as arrays.

    ``columns`` limits what is read: arrival_s, input_tokens, output_tokens, model, region, tier,
    cached_tokens, reasoning_tokens, hash_ids, session, think_s. By default it is the first six.
    Raise IngestError for another column, or for a demand trace.
    """
    report, scan = scan_requests(store_dir)
    chosen = tuple(COLUMNS if columns is None else columns)
    if unknown := set(chosen) - {*COLUMNS, *TOKENS, "hash_ids", SESSION, THINK}:
        raise IngestError(f"Stored requests have no column {min(unknown)}.")
    stored = [column for column in chosen if column in scan.collect_schema().names()]
    plain = [column for column in stored if column not in ("hash_ids", SESSION)]
    arrays, names = _plain_columns(store_dir, plain, report)
    if "hash_ids" in stored:
        ids = scan.select("hash_ids").collect()["hash_ids"]
        lengths = ids.list.len().fill_null(0).to_numpy().astype(np.int64)
        arrays["hash_offsets"] = _read_only(np.concatenate(([0], np.cumsum(lengths))))
        arrays["hash_ids"] = _read_only(ids.drop_nulls().explode(empty_as_null=False).to_numpy())
    return RequestColumns(
        start_s=report.start_s,
        clock=report.clock,
        provenance=report.provenance,
        session=stored_sessions(scan) if SESSION in chosen else None,
        models=names["model"],
        regions=names["region"],
        tiers=names["tier"],
        **{name: arrays.get(name) for name in (*COLUMNS, "cached_tokens", THINK, *HASHES)},
    )


def stored_sessions(scan: pl.LazyFrame) -> Int32Array | None:
    """Return the session number of each request, from 0 on, ``[requests]``; -1 for no session.

    ``scan`` are the stored requests. Without a session column, requests form a session if each
    names the request before it. None if no session has two requests.
    """
    stored_columns = scan.collect_schema().names()
    if SESSION in stored_columns:
        sessions = scan.select(SESSION).collect()[SESSION]
    elif {"request_id", "parent"} <= set(stored_columns):
        links = scan.select("request_id", "parent").collect()
        sessions = _first_of_chain(links["request_id"], links["parent"])
    else:
        return None
    # Sessions of one request have nothing to wait for.
    has_several = sessions.is_not_null() & sessions.is_duplicated()
    if not has_several.any():
        return None
    number = np.full(sessions.len(), -1, np.int32)
    _, number_in_several = np.unique(sessions.filter(has_several).to_numpy(), return_inverse=True)
    number[has_several.to_numpy()] = number_in_several
    return _read_only(number)


def _first_of_chain(ids: pl.Series, parents: pl.Series) -> pl.Series:
    """Return the index of the first request in each request's chain of stored parents."""
    rows = pl.DataFrame({"id": ids, "row": np.arange(ids.len())}).unique("id", keep="first")
    parent_rows = pl.DataFrame({"id": parents}).join(
        rows, on="id", how="left", maintain_order="left"
    )
    parent = parent_rows["row"].fill_null(-1).to_numpy().astype(np.int64)
    index = np.arange(len(parent))
    # A parent must come before, so that chains end.
    ancestor = np.where((parent >= 0) & (parent < index), parent, index)
    # Follow the ancestors of ancestors until all are the first of their chain.
    while True:
        further = ancestor[ancestor]
        if np.array_equal(further, ancestor):
            return pl.Series(ancestor)
        ancestor = further


def _plain_columns(
    store_dir: Path | str, chosen: Sequence[str], report: IngestReport
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, tuple[str, ...]]]:
    """Return the ``chosen`` columns as arrays ``[requests]``, and the names of each label.

    The column of a label (model, region, tier) has the index of the request's name. The name "" is
    added for rows without a label. Files are read one at a time, because labels as text take more
    memory than all other columns. Raise DamagedFile if requests are missing.
    """
    names = {"model": report.models, "region": report.regions, "tier": report.tiers}
    names_and_blank = _label_names(report)
    parts = request_parts(store_dir)
    lengths = [pl.scan_parquet(part).select(pl.len()).collect().item() for part in parts]
    count = sum(lengths)
    # A lost part would otherwise go unnoticed, because each part is valid alone.
    if count != report.requests:
        raise DamagedFile(
            f"{count:,} of {report.requests:,} requests of the trace are stored; {AGAIN}."
        )
    stored = {name: np.empty(count, DTYPES.get(name, np.int16)) for name in chosen}
    begin = 0
    for part, length in zip(parts, lengths, strict=True):
        frame = pl.read_parquet(part, columns=list(chosen))
        for name in chosen:
            values = frame[name]
            if label_names := names_and_blank.get(name):
                if values.has_nulls():
                    names[name] = label_names
                values = values.fill_null("").cast(pl.Enum(label_names)).to_physical()
            stored[name][begin : begin + length] = values.to_numpy()
        begin += length
    return {name: _read_only(column) for name, column in stored.items()}, names


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same array, which can no longer be written to."""
    values.setflags(write=False)
    return values


@damage_reported(STORED, AGAIN)
def read_demand(store_dir: Path | str) -> list[DemandColumns]:
    """Return every series of a demand trace, in order of appearance.

    Amounts are scaled to all requests if the file has a sample of them.

    Raises IngestError for a request trace.
    """
    report = read_report(store_dir)
    if report.kind != "demand" or report.bin_s is None:
        raise IngestError(
            f"{report.trace} holds requests, not demand per bin; bin them with bin_requests."
        )
    keys = ["series", *LABELS]
    frame, series = number_keys(pl.read_parquet(Path(store_dir) / DEMAND), keys)
    if not frame["number"].is_sorted():
        frame = frame.sort("number", maintain_order=True)
    amounts = {
        field: _read_only(frame[field].fill_null(np.nan).to_numpy(writable=True) * report.sample)
        for field in AMOUNTS
        if field in frame.columns  # a store of an earlier version may lack one
    }
    # Series n has the rows ``edges[n]`` up to ``edges[n + 1]``.
    edges = np.searchsorted(frame["number"].to_numpy(), np.arange(series.height + 1)).tolist()
    bin_starts_s = frame["bin_start_s"].to_numpy()
    lengths = _lengths_of(store_dir)
    columns = []
    labels_of_series = series.select(keys).iter_rows()
    for (name, model, region, tier), (first, end) in zip(
        labels_of_series, pairwise(edges), strict=True
    ):
        of_series = {field: values[first:end] for field, values in amounts.items()}
        requests = of_series.pop("requests")
        known = {
            field: None if np.isnan(values).all() else values for field, values in of_series.items()
        }
        columns.append(
            DemandColumns(
                name, model, region, tier, float(bin_starts_s[first]), report.bin_s, requests,
                **known,
                input_lengths=lengths.get((name, "input_tokens")),
                output_lengths=lengths.get((name, "output_tokens")),
            )
        )  # fmt: skip
    return columns


def read_whole_demand(store_dir: Path | str) -> tuple[list[DemandColumns], list[str]]:
    """Return every series of a demand trace, extended to the first and last bin of all, and notes.

    The added bins are zero. A note counts the series that lack more than one bin at an end.
    """
    all_series = read_demand(store_dir)
    first_s = min(series.start_s for series in all_series)
    last_s = max(series.end_s for series in all_series)
    extended = [_extend_with_zeros(series, first_s, last_s) for series in all_series]
    shorter = 0
    for series in all_series:
        longest_gap_s = max(series.start_s - first_s, last_s - series.end_s)
        shorter += longest_gap_s > 1.5 * series.bin_s
    return extended, [absent_parts(shorter, len(all_series))] if shorter else []


def absent_parts(shorter: int, total: int) -> str:
    """Return a note that ``shorter`` of a trace's ``total`` series are shorter than the trace."""
    return (
        f"{shorter} of {total} series begin later or end earlier than the trace. Outside its own "
        "bins, a series counts as zero."
    )


def _extend_with_zeros(series: DemandColumns, first_s: float, last_s: float) -> DemandColumns:
    """Return a series extended to [first_s, last_s) with zeros.

    Amounts that it does not count stay unknown (None or NaN).
    """
    before = round((series.start_s - first_s) / series.bin_s)  # bins
    after = round((last_s - series.end_s) / series.bin_s)
    if not before and not after:
        return series
    amounts: dict[str, Any] = {}
    for field in AMOUNTS:
        values = getattr(series, field)
        if values is not None:
            absent = np.nan if np.isnan(values).all() else 0.0
            amounts[field] = _read_only(np.pad(values, (before, after), constant_values=absent))
    return replace(series, start_s=first_s, **amounts)


def label_code(report: IngestReport) -> pl.Expr:
    """Return an expression that encodes a request's model, region and tier in one number.

    Grouping ten million requests takes a second by this code, and ten seconds by names.
    ``labels_of`` decodes it.
    """
    code = pl.lit(0, dtype=pl.Int64)
    for label, names in _label_names(report).items():
        category = pl.col(label).fill_null("").cast(pl.Enum(names))
        code = code * len(names) + category.to_physical().cast(pl.Int64)
    return code


def labels_of(
    report: IngestReport, codes: IntArray
) -> list[tuple[str | None, str | None, str | None]]:
    """Return (model, region, tier) of each code of ``label_code``; None for a missing label."""
    models, regions, tiers = _label_names(report).values()
    # A code is the index in a table of [model, region, tier], flattened.
    indices = np.unravel_index(codes, (len(models), len(regions), len(tiers)))
    return [
        (models[model] or None, regions[region] or None, tiers[tier] or None)
        for model, region, tier in np.stack(indices, axis=1).tolist()
    ]


def _label_names(report: IngestReport) -> dict[str, tuple[str, ...]]:
    """Return the names behind label codes, with "" for rows without a label."""
    labels = {"model": report.models, "region": report.regions, "tier": report.tiers}
    return {
        label: (*dict.fromkeys(name for name in names if name), "")
        for label, names in labels.items()
    }


@damage_reported(STORED, AGAIN)
def bin_requests(store_dir: Path | str, bin_s: float) -> list[DemandColumns]:
    """Return requests and tokens per bin, one series per model, region and tier.

    Bins are ``bin_s`` wide and begin at multiples of it since 1970 (or since the trace's start).
    Amounts of a sample are scaled to all requests. The requests are not all loaded at once.

    All series have the bins from the first request of the trace to the last. A bin without a
    request is 0. The first and the last bin are usually covered only in part. Raise IngestError for
    bins of less than 1 ms, or for too many.
    """
    if not bin_s >= 0.001:
        raise IngestError(f"The bin width must be at least 0.001 s, not {bin_s:g} s.")
    report, scan = scan_requests(store_dir)
    bin_ns = round(bin_s * 1e9)
    first_bin = report.start_ns // bin_ns
    bins = report.end_ns // bin_ns - first_bin + 1
    _check_bins(bins, bin_s)
    sums = _sums_per_bin(report, scan, bin_ns, bins)
    # A code numbers a model, region and tier. Each sum is of a code and bin: code * bins + bin.
    code_of_sum, bin_of_sum = np.divmod(sums["code_and_bin"].to_numpy(), bins)
    codes, series_of_sum = np.unique(code_of_sum, return_inverse=True)
    _check_bins(bins * len(codes), bin_s)
    amounts = np.zeros((3, len(codes), bins))  # [requests, input or output tokens; series; bin]
    for values, field in zip(amounts, AMOUNTS, strict=False):
        values[series_of_sum, bin_of_sum] = sums[field].to_numpy() * report.sample
    amounts.setflags(write=False)
    start_s = first_bin * bin_ns / 1e9
    columns = []
    for number, labels in enumerate(labels_of(report, codes)):  # model, region, tier
        name = " / ".join(filter(None, labels)) or report.trace
        requests, prompts, answers = amounts[:, number]
        columns.append(
            DemandColumns(name, *labels, start_s, bin_s, requests, prompts, answers, None)
        )
    # Missing names come first.
    columns.sort(key=lambda c: [(name is not None, name) for name in (c.model, c.region, c.tier)])
    return columns


def _sums_per_bin(report: IngestReport, scan: pl.LazyFrame, bin_ns: int, bins: int) -> pl.DataFrame:
    """Return requests and tokens by ``code_and_bin``, the label code times ``bins``, plus the bin.

    One number stands for labels and bin, because grouping by one column is fast.
    """
    # Arrivals are counted from the begin of the first bin.
    arrival_ns = (pl.col("arrival_s") * 1e9).round().cast(pl.Int64) + report.start_ns % bin_ns
    bin_index = (arrival_ns // bin_ns).clip(0, bins - 1)
    code_and_bin = (label_code(report) * bins + bin_index).alias("code_and_bin")
    tokens = pl.col("input_tokens", "output_tokens").cast(pl.Int64).sum()
    rows = scan.select(code_and_bin, "input_tokens", "output_tokens").group_by("code_and_bin")
    sums = rows.agg(pl.len().alias("requests"), tokens).sort("code_and_bin")
    return sums.collect(engine="streaming")
