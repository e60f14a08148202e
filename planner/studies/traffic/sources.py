"""The scenario's sources opened: whose requests they are, and how they fit the scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.errors import ScenarioError
from planner.ingest.store import DemandColumns, RequestColumns
from planner.scenario.schema import Source
from planner.studies.traffic.binned import BinnedSource
from planner.studies.traffic.prefixes import blocks_of
from simulation.arrays import CodeArray
from simulation.trace import Trace

MAX_REQUESTS = 50_000_000  # replayed at once, a few hundred bytes each: all of Azure's 2024 week
REPEAT_JITTER_S = 30.0  # scale above 1: a repeated request comes within this of the original


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace as the column store has it."""

    name: str
    kind: str  # "requests" or "demand"
    clock: str  # "utc" or "relative"
    store: Path


def measured_source(
    shell: Trace, source: Source, columns: RequestColumns, where: str, rng: np.random.Generator
) -> Trace:
    """A source's requests with model, region and tier settled and its scale applied.

    ``shell`` has the scenario's names. A scale below 1 keeps a random part; above 1, requests come
    repeatedly, the repeats within REPEAT_JITTER_S of the original. Unscaled requests keep what is
    known of the blocks of their prompts.
    """
    arrived, isl, osl = columns.arrival_s, columns.input_tokens, columns.output_tokens
    if arrived is None or isl is None or osl is None:
        raise ValueError("arrivals and lengths must have been read")
    keep = np.arange(len(arrived))
    if source.series is not None:
        code = code_of(columns.models, source.series, f"{where}.series", "series")
        keep = keep[columns.model == code]
    check_requests(len(keep) * source.scale, where, "scale")
    times = int(source.scale) + (rng.random(len(keep)) < source.scale % 1.0)
    original = np.repeat(np.arange(len(keep)), times)
    repeats = np.concatenate([[False], np.diff(original) == 0]) if len(original) else original > 0
    keep = keep[original]
    arrival = arrived[keep].copy()
    arrival[repeats] += rng.uniform(-REPEAT_JITTER_S, REPEAT_JITTER_S, int(repeats.sum()))
    if len(arrived):
        arrival = np.clip(arrival, 0.0, arrived[-1])
    order = np.argsort(arrival, kind="stable")
    keep = keep[order]

    def settle(
        stated: dict[str, float],
        names: tuple[str, ...],
        codes: CodeArray | None,
        labels: tuple[str, ...],
        what: str,
    ) -> CodeArray:
        if stated:
            shares = np.array(list(stated.values()))
            picks = rng.choice(len(stated), size=len(keep), p=shares / shares.sum())
            return np.array([names.index(name) for name in stated], np.int16)[picks]
        if codes is None or not any(labels):
            if len(names) == 1:
                return np.zeros(len(keep), np.int16)
            raise ScenarioError(f"{where}: the file does not say the {what}; give it here.")
        used = np.bincount(codes[keep], minlength=len(labels)) > 0
        table = [
            code_of(names, label, where, what) if in_use else 0
            for label, in_use in zip(labels, used, strict=True)
        ]
        return np.array(table, np.int16)[codes[keep]]

    one_model = {source.model: 1.0} if source.model else {}
    blocks = blocks_of(columns) if source.scale == 1 else None
    return replace(
        shell,
        arrival_s=arrival[order],
        input_tokens=isl[keep],
        output_tokens=osl[keep],
        model=settle(one_model, shell.models, columns.model, columns.models, "model"),
        region=settle(source.regions, shell.regions, columns.region, columns.regions, "region"),
        tier=settle(source.tiers, shell.tiers, columns.tier, columns.tiers, "tier"),
        start_s=columns.start_s,
        blocks=None if blocks is None else blocks.rows(keep),
    )


def check_requests(count: float, where: str, field: str) -> None:
    """Raise ScenarioError where ``count`` requests are more than may be replayed; ``field`` can
    make them fewer."""
    if count > MAX_REQUESTS:
        raise ScenarioError(
            f"{where}: this is {count:,.0f} requests and {MAX_REQUESTS:,} can be replayed; choose "
            f"a smaller {field}."
        )


def span(columns: RequestColumns) -> tuple[float, float]:
    """First and last arrival of a file of requests, epoch seconds."""
    if columns.arrival_s is None:
        raise ValueError("arrivals must have been read")
    first, last = columns.arrival_s[[0, -1]].tolist()
    return columns.start_s + first, columns.start_s + last


def binned_sources(
    shell: Trace, source: Source, columns: list[DemandColumns], where: str
) -> list[BinnedSource]:
    """A demand file's series (or the one named), each with its model and its shares."""
    if source.series is not None:
        names = tuple(series.name for series in columns)
        columns = [columns[code_of(names, source.series, f"{where}.series", "series")]]
    sources = []
    for series in columns:
        model = source.model or series.model or series.name
        cells = np.zeros((len(shell.regions), len(shell.tiers)))
        regions = source.regions or _only(series.region, shell.regions, where, "region")
        tiers = source.tiers or _only(series.tier, shell.tiers, where, "tier")
        for region, of_region in regions.items():
            for tier, of_tier in tiers.items():
                cell = (
                    code_of(shell.regions, region, where, "region"),
                    code_of(shell.tiers, tier, where, "tier"),
                )
                cells[cell] = of_region * of_tier * source.scale
        binned = BinnedSource(
            columns=series,
            model=code_of(shell.models, model, where, "model"),
            cells=cells,
            input_lengths=source.input_tokens,
            output_lengths=source.output_tokens,
            launch=source.launch,
        )
        _check_tokens(binned, source, where)
        sources.append(binned)
    return sources


def _check_tokens(binned: BinnedSource, source: Source, where: str) -> None:
    for field, known in (
        ("input_tokens", binned.columns.input_tokens),
        ("output_tokens", binned.columns.output_tokens),
    ):
        if known is None and getattr(source, field) is None:
            raise ScenarioError(
                f"{where}: {source.trace} has no {field.replace('_', ' ')} for "
                f"{binned.columns.name}; give {field}: {{mean: ..., cv: ...}} (tokens per request)."
            )
    if np.isnan(binned.requests()).all():
        raise ScenarioError(
            f"{where}: {source.trace} counts tokens and no requests for {binned.columns.name}; "
            "give input_tokens and output_tokens (tokens per request) so that requests can be "
            "drawn."
        )


def _only(label: str | None, names: tuple[str, ...], where: str, what: str) -> dict[str, float]:
    if label:
        return {label: 1.0}
    if len(names) == 1:
        return {names[0]: 1.0}
    raise ScenarioError(f"{where}: the file does not say the {what}; give {what}s with shares.")


def code_of(names: tuple[str, ...], name: str, where: str, what: str) -> int:
    """Where ``name`` stands in ``names``; raises ScenarioError listing them."""
    if name in names:
        return names.index(name)
    have = ", ".join(name for name in names[:12] if name) or "none"
    raise ScenarioError(f"{where}: {what} {name!r} is not known here; there are: {have}.")
