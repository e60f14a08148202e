"""State the verdict on prefill and decode pools: which split to run, or to stay aggregated."""

from collections.abc import Mapping, Sequence

from planner.domain.pd.figures import AggregatedCapacity, RatioFigures, RatioRow, ratio_name
from simulation.sizing.capacity import PRECISION

# Smallest gain over aggregated serving that is above the precision of the simulated rates.
MIN_GAIN = 2 * PRECISION
MAX_LOSS = 0.02  # share of the best capacity below which another split is as good


def beats_aggregated(best: RatioFigures, mixed: AggregatedCapacity | None) -> bool:
    """Return whether the best ratio serves clearly more than aggregated replicas (``mixed``).

    True if there is no profile of aggregated replicas (None).
    """
    return mixed is None or best.max_tps >= mixed.max_tps * (1 + MIN_GAIN)


def edge_role(best: RatioFigures) -> str:
    """Return the role that has one replica in the best ratio of several; "" if neither has."""
    if best.prefill + best.decode == 2:
        return ""
    if best.prefill == 1:
        return "prefill"
    return "decode" if best.decode == 1 else ""


def best_split(best: RatioFigures, mixed: AggregatedCapacity | None) -> str:
    """Return a sentence on the best ratio, or on aggregated serving if that is as good.

    ``mixed`` is the capacity of as many aggregated replicas; None: there is no profile for them.
    """
    count = best.prefill + best.decode
    split = f"{best.name} of {count} replicas, {best.max_tps:,.0f} tokens/s"
    if mixed is None:
        return f"Best split: {split}"
    if mixed.max_tps >= best.max_tps:
        return (
            f"Stay aggregated: {count} replicas serve {mixed.max_tps:,.0f} tokens/s, "
            f"the best split {best.name} {best.max_tps:,.0f}"
        )
    if mixed.max_tps == 0:
        return f"Best split: {split}. Aggregated serving meets the SLO at no rate"
    gain = best.max_tps / mixed.max_tps - 1.0
    if not beats_aggregated(best, mixed):
        return (
            f"Stay aggregated: the best split {best.name} gains {gain:.1%} "
            f"over {mixed.max_tps:,.0f} tokens/s"
        )
    return f"Best split: {split}, {gain:.0%} more than aggregated"


def headline(
    best: RatioFigures,
    mixed: AggregatedCapacity | None,
    ratios: Sequence[RatioRow] = (),
    today: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """Return which splits of replicas to run, in sentences.

    - If no split beats aggregated serving: the advice to stay aggregated.
    - With ``today``, the (prefill, decode) replicas by region: which splits to keep, and which to
      change. A region with another number of replicas is compared at the nearest of ``ratios``.
    - Otherwise: the best split.

    In the last two cases, a sentence follows if the best split is at the edge of the range.
    """
    if not beats_aggregated(best, mixed):
        return best_split(best, mixed)
    sentences = _todays_verdicts(best, ratios, today) if today else [best_split(best, mixed)]
    role = edge_role(best)
    if role:
        sentences.append(f"The best split is at the edge of the range: one {role} replica")
    return ". ".join(sentences)


def _todays_verdicts(
    best: RatioFigures, ratios: Sequence[RatioRow], today: Mapping[str, tuple[int, int]]
) -> list[str]:
    """Return a sentence on the splits of today to keep, and one on those to change."""
    keep: list[str] = []
    change: list[str] = []
    for region, (prefill, decode) in today.items():
        name = f"{ratio_name(prefill, decode)} in {region}"
        advised = _advised_prefills(best, ratios, prefill, decode)
        if advised == prefill:
            keep.append(name)
        else:
            change.append(f"{name} to {ratio_name(advised, prefill + decode - advised)}")
    verdicts = []
    if keep:
        verdicts.append(f"Keep the current fleet's split: {' and '.join(keep)}")
    if change:
        verdicts.append(f"Change the current fleet's split: {' and '.join(change)}")
    return verdicts


def _advised_prefills(
    best: RatioFigures, ratios: Sequence[RatioRow], prefill: int, decode: int
) -> int:
    """Return how many of today's replicas should prefill; ``prefill`` if that is near the best."""
    total, count = prefill + decode, best.prefill + best.decode
    tps_by_prefill = {row.figures.prefill: row.figures.max_tps for row in ratios}
    nearest_tps = tps_by_prefill.get(round(count * prefill / total), 0.0)
    if nearest_tps >= best.max_tps * (1 - MAX_LOSS):
        return prefill
    return min(max(round(total * best.prefill / count), 1), total - 1)
