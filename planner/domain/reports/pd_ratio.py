"""Report the best ratio of prefill to decode replicas."""

from collections.abc import Iterator, Sequence

from planner.domain.formats import figure, milliseconds, signed_percent
from planner.domain.kinds.pd_ratio import PdRatioResult
from planner.domain.pd.figures import RatioFigures, ratio_name
from planner.domain.pd.ratio_drift import Split
from planner.domain.pd.verdict import MAX_LOSS, beats_aggregated, best_split, edge_role
from planner.domain.report import (
    Axis,
    Block,
    Chart,
    Fact,
    Form,
    Group,
    Head,
    Note,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    limit_name,
    sources_section,
    step_series,
    table,
    table_section,
)
from planner.domain.reports.tables import Tables

METHODS = {"simulation": "pools together", "each pool": "pools separately"}
NO_RATIO = "none"  # no ratio meets the SLO
ROUNDS_TO_ZERO = 0.0005  # shares below it are shown as 0.0%


def report(result: PdRatioResult, _: Tables) -> Report:
    """Return the report of ``pd-ratio``."""
    plans_differ = Note(
        f"The ratio is for {result.instances} replicas. Plans size each region by its demand."
    )
    reason = best_split(result.best.figures, result.mixed)
    return Report(
        title=result.scenario,
        answer=result.headline,
        why="" if result.headline.startswith(reason) else f"{reason}.",
        about=_subject(result),
        facts=tuple(_facts(result)),
        warnings=tuple(_warnings(result)),
        sections=(
            Section("Capacity by ratio", (_curve(result), plans_differ, _ratios(result)), "Ratios"),
            *_over_time(result),
            *_sensitivity(result),
            *_pairs(result),
            *sources_section(
                result.provenance,
                (
                    f"{result.judged_by}.",
                    f"Published range: {result.production_range}.",
                    *result.notes,
                ),
            ),
        ),
        clock=result.clock,
    )


def _subject(result: PdRatioResult) -> str:
    """Return the service in a line: tier, SLO, mean lengths, and GPUs of both pools."""
    limits = {"TTFT": result.limits.ttft_ms, "TPOT": result.limits.tbt_ms}
    slo = ", ".join(f"{name} {milliseconds(ms)}" for name, ms in limits.items() if ms is not None)
    pools = {"prefill": result.prefill, "decode": result.decode}
    gpus = [
        f"{role} on {pool.arrangement.removesuffix(f', {role}')}" for role, pool in pools.items()
    ]
    return (
        f"{result.service} · {result.tier}: {slo}, p{result.percentile:g} · mean of "
        f"{result.isl:,.0f} input, {result.osl:,.0f} output tokens · {', '.join(gpus)}"
    )


def _facts(result: PdRatioResult) -> Iterator[Fact]:
    """Yield the capacity of the best ratio, and the KV transfer."""
    best = result.best.figures
    gain = ""
    aggregated_tps = _aggregated_tps(result)
    if aggregated_tps:
        gain = f"{signed_percent(best.max_tps / aggregated_tps - 1, 0)} vs aggregated"
    limit = f"limit: {limit_name(best.bound_by)}"
    yield Fact(f"Capacity of {best.name}", best.max_tps, "tokens/s", change=gain, note=limit)
    link = f"at {figure(result.link_gb_s, 'GB/s')}"
    if best.transfer_ms is not None:
        link = f"{figure(best.transfer_ms, 'ms')} {link}"
    yield Fact("KV cache of a request", result.kv_mb, "MB", note=link)


def _aggregated_tps(result: PdRatioResult) -> float:
    """Return the capacity of as many aggregated replicas, in tokens/s; 0 if it is not known."""
    return 0.0 if result.mixed is None else result.mixed.max_tps


def _warnings(result: PdRatioResult) -> Iterator[str]:
    """Yield warnings on a split without a TPOT limit, or with one replica in a pool.

    Nothing if aggregated serving is better.
    """
    best = result.best.figures
    if not beats_aggregated(best, result.mixed):
        return
    if result.limits.tbt_ms is None and result.limits.e2e_ms is None:
        yield (
            f"The tier has no TPOT limit, so decode is as slow as its memory allows: TPOT "
            f"{milliseconds(best.tbt_ms)}. Set a TPOT limit to size decode for it."
        )
    role = edge_role(best)  # with a single replica
    if role:
        yield (
            f"The best split has one {role} replica. Losing it stops the service. "
            "Try more replicas."
        )


def _curve(result: PdRatioResult) -> Chart:
    """Return a chart of each ratio's capacity and its limiting SLO (HeteroScale, figure 4)."""
    rows = [row.figures for row in result.ratios]
    series = [_capacities("capacity", rows, Role.RECOMMENDED, Shape.LINE)]
    for bound in dict.fromkeys(row.bound_by for row in rows):
        limited = [row for row in rows if row.bound_by == bound]
        series.append(_capacities(f"limit: {limit_name(bound)}", limited, Role.OTHER, Shape.POINTS))
    aggregated_tps = _aggregated_tps(result)
    if aggregated_tps:
        ends = (rows[0].name, rows[-1].name)
        heights = (aggregated_tps, aggregated_tps)
        series.append(Series("aggregated", ends, heights, Role.BASELINE))
    unit = "input + output tokens/s"
    title = "Capacity within the SLO"
    return Chart(title, Axis("prefill : decode"), Axis(unit=unit), tuple(series))


def _capacities(label: str, ratios: Sequence[RatioFigures], role: Role, shape: Shape) -> Series:
    """Return the capacities of ``ratios`` in tokens/s."""
    names = tuple(row.name for row in ratios)
    return Series(label, names, tuple(row.max_tps for row in ratios), role, shape)


def _ratios(result: PdRatioResult) -> Table:
    """Return a table of every ratio with its capacity and latencies; the best is highlighted."""
    return table(
        sorted(result.ratios, key=lambda row: -row.figures.max_tps),
        (Head("Ratio"), lambda row: row.figures.name),
        (Head("Capacity", Form.COUNT, "tokens/s"), lambda row: row.figures.max_tps),
        (Head("Capacity", Form.NUMBER, "req/s"), lambda row: row.figures.max_rps),
        (Head("Limit"), lambda row: limit_name(row.figures.bound_by)),
        (Head("TTFT", Form.NUMBER, "ms"), lambda row: row.figures.ttft_ms),
        (Head("TPOT", Form.NUMBER, "ms"), lambda row: row.figures.tbt_ms),
        (Head("KV transfer", Form.NUMBER, "ms"), lambda row: row.figures.transfer_ms),
        (Head("Simulation"), lambda row: METHODS.get(row.by, row.by)),
        title="Every ratio",
        note="The best ratio and its neighbours are simulated with both pools together. For "
        "others, the smaller capacity of the two pools counts.",
        marked=lambda row: row.figures.name == result.best.figures.name,
    )


def _over_time(result: PdRatioResult) -> Iterator[Section]:
    """Yield the section on the best ratio in each window of the traffic, if there are several."""
    rows = [row for row in result.over_time if row.prefill]
    if len(rows) < 2:
        return
    times = tuple(row.start for row in rows)
    counts = tuple(float(row.prefill) for row in rows)
    notes = tuple(f"{row.isl:,.0f} input, {row.osl:,.0f} output tokens" for row in rows)
    best_by_window = step_series("best in the window", times, counts, Role.RECOMMENDED, notes)
    best = result.best.figures
    span = (times[0], best_by_window.x[-1])
    fixed_count = float(best.prefill)
    fixed = Series(f"fixed at {best.name}", span, (fixed_count, fixed_count), Role.BASELINE)
    y_axis = Axis(unit=f"of {result.instances}", top=float(result.instances))
    title = "Prefill replicas of the best ratio"
    chart = Chart(title, Axis(), y_axis, (best_by_window, fixed))
    # Share of capacity that the fixed ratio loses, in the worst window.
    most_lost = max(row.kept_loses or 0.0 for row in result.over_time)
    advice = "Keep it fixed" if most_lost < MAX_LOSS else "Adapt the ratio to request lengths"
    note = f"A fixed {best.name} loses at most {most_lost:.1%} of capacity in a window. {advice}."
    if most_lost < ROUNDS_TO_ZERO:
        note = f"Keep {best.name} fixed: no other ratio gains capacity in any window."
    yield Section("Ratio over time, by formula", (Note(note), chart), "Over time", Group.BASIS)


def _sensitivity(result: PdRatioResult) -> Iterator[Section]:
    """Yield the section on the best ratio at other lengths and limits, by closed forms."""
    sensitivity = result.sensitivity
    blocks: list[Block] = []
    # The cells are computed by the formula, so say if it disagrees with the simulation.
    best_by_formula = max(result.ratios, key=lambda row: row.closed_tps).figures.name
    best = result.best.figures.name
    if best_by_formula != best:
        ranking = f"Queueing formulas rank {best_by_formula} first, simulation {best}."
        blocks.append(Note(f"{ranking} Compare cells with each other only."))
    isl, osl = [round(n) for n in sensitivity.isl], [round(n) for n in sensitivity.osl]
    by_lengths = sensitivity.by_lengths
    blocks.append(_heat_map("Mean lengths", "Input / output tokens", isl, osl, by_lengths))
    # If a limit is not set (None), all factors on it give the same ratios, so show one.
    ttft_ms, tbt_ms = sensitivity.ttft_ms, sensitivity.tbt_ms
    has_ttft, has_tbt = ttft_ms[0] is not None, tbt_ms[0] is not None
    if has_ttft or has_tbt:
        rows, columns = ttft_ms if has_ttft else (None,), tbt_ms if has_tbt else (None,)
        blocks.append(_heat_map("Limits (ms)", "TTFT / TPOT", rows, columns, sensitivity.by_limits))
    title = "Best ratio at other lengths and limits, by formula"
    yield Section(title, tuple(blocks), "Sensitivity", group=Group.BASIS)


def _heat_map(
    title: str,
    corner: str,
    rows: Sequence[float | None],
    columns: Sequence[float | None],
    cells: Sequence[Sequence[Split]],
) -> Table:
    """Return a heat map of ratios; darker cells have a larger share of prefill replicas.

    ``rows`` and ``columns`` are the values of the axes, such as limits in ms (None: no limit).
    ``cells`` are the ratios by row and column; those beyond the axes are ignored. ``corner`` is
    the heading of the first column.
    """
    texts: list[tuple[str, ...]] = []
    shades: list[tuple[float | None, ...]] = []
    for row_value, splits in zip(rows, cells, strict=False):
        names, prefill_shares = [], []
        for split in splits[: len(columns)]:
            # A split without prefill replicas stands for none that meets the SLO.
            is_feasible, count = split.prefill > 0, split.prefill + split.decode
            names.append(ratio_name(split.prefill, split.decode) if is_feasible else NO_RATIO)
            prefill_shares.append(split.prefill / count if is_feasible else None)
        texts.append((_axis_text(row_value), *names))
        shades.append((None, *prefill_shares))
    return Table(
        (Head(corner), *(Head(_axis_text(column)) for column in columns)),
        tuple(texts),
        title,
        note="Darker: more prefill replicas.",
        shades=tuple(shades),
    )


def _axis_text(value: float | None) -> str:
    """Return a value of an axis as text; None: no limit."""
    return "no limit" if value is None else figure(value)


def _pairs(result: PdRatioResult) -> Iterator[Section]:
    """Yield the section on pairs of GPU types for prefill and decode, if there are several."""
    yield from table_section(
        "GPU pairs, by formula",
        result.pairs if len(result.pairs) > 1 else (),
        (Head("Prefill on", width=2), lambda pair: pair.prefill_on),
        (Head("Decode on", width=2), lambda pair: pair.decode_on),
        (Head("Best ratio"), lambda pair: ratio_name(pair.prefill, pair.decode)),
        (Head("Capacity", Form.COUNT, "tokens/s"), lambda pair: pair.max_tps),
        (Head("Cost", Form.NUMBER, "$/h"), lambda pair: pair.usd_per_hour),
        (Head("Cost", Form.NUMBER, "$/M tokens"), lambda pair: pair.usd_per_million_tokens),
        name="GPU pairs",
        note="The report is for the first pair.",
    )
