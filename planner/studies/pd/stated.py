"""The best ratio of prefill to decode of models whose plan has such pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.scenario.build import Hardware
from planner.studies.pd.service import pairs_of, strictest_split, usual_instances
from planner.studies.results.documents import clean
from planner.studies.sizing.sizing import Lengths
from simulation.errors import SimulationError
from simulation.sizing.pd_ratio import Best, PdService, best_of, ratios, splits

Document = dict[str, Any]


def stated_ratios(hardware: Hardware, lengths: Sequence[Lengths]) -> list[Document]:
    """For the results of a plan: of every model with prefill and decode pools, the best ratio by
    closed forms, of the same number of instances as ``pd_ratio`` takes; ``note`` where none."""
    stated = []
    for m, model in enumerate(hardware.models):
        pairs = [
            pair for pair in pairs_of(hardware, m)
            if hardware.columns[pair.prefill].role == "prefill"
        ]  # fmt: skip
        for columns in pairs:
            count = usual_instances(hardware, m, columns)
            row: Document = {
                "model": model.name,
                "prefill_on": hardware.columns[columns.prefill].label,
                "decode_on": hardware.columns[columns.decode].label,
                "instances": count,
                "by": "closed forms",
            }
            try:
                service, _ = strictest_split(hardware, m, columns, lengths[m], count)
                best = best_of(ratios(service, splits(count)), service)
            except SimulationError as problem:
                stated.append(row | {"note": str(problem)})
                continue
            stated.append(row | {"tier": service.tier.name} | best_document(best, service))
    return stated


def best_document(best: Best, service: PdService) -> Document:
    return {
        "prefill": best.ratio.prefill,
        "decode": best.ratio.decode,
        "max_tps": best.ratio.max_tps,
        "max_rps": best.ratio.max_rps,
        "bound_by": best.ratio.bound_by,
        "ttft_ms": milliseconds(best.ratio.ttft_s),
        "tbt_ms": milliseconds(best.ratio.tbt_s),
        "transfer_ms": milliseconds(best.ratio.transfer_s),
        "lost_with_fewer_prefill": best.fewer_prefill,
        "lost_with_more_prefill": best.more_prefill,
    }


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else clean(1000 * seconds)
