"""``bin/manage size``: find the largest request rate of a replica and of pools within the SLOs."""

from __future__ import annotations

from typing import Any

from planner.domain.sizing.size_errors import bias_in_words
from planner.management.base import RunCommand
from planner.models import Run
from planner.outputs.table_text import listed

COLUMNS = {
    "model": "model", "replica": "arrangement", "tier": "tier", "requests/s": "max_rps:.3g",
    "bound by": "bound_by", "TTFT ms": "ttft_ms:,.1f", "TBT ms": "tbt_ms:,.1f",
    "closed forms": "predicted_rps:.3g", "off by": "prediction_error:+.1%",
    "profile's error": "expected_error:.1%", "if slower": "max_rps_if_slower:.3g",
    "if faster": "max_rps_if_faster:.3g", "found on": "error_basis",
}  # fmt: skip

POOLS = (2, 8, 32, 64)  # pool sizes that are shown
TOGETHER = {
    "model": "model", "replica": "arrangement", "requests/s alone": "max_rps:.3g",
    **{f"each of {n}": f"each_{n}:.3g" for n in POOLS},
    "for requests/s": "demand_rps:.3g", "replicas": "replicas:,",
}  # fmt: skip

SPLITS = {
    "GPUs divided of": "model", "replica": "replica", "attention": "attention:d", "FFN": "ffn:d",
    "closed forms": "predicted_rps:.3g", "simulated": "max_rps:.3g", "bound by": "bound_by",
    "KV tokens": "kv_capacity_tokens:,", "": "said",
}  # fmt: skip


class Command(RunCommand):
    help = "Size one replica of each model on each GPU type: the largest rate within the SLOs."
    kind = Run.Kind.SIZE

    def words(self, answer: dict[str, Any]) -> str:
        rows = listed(answer["pools"], COLUMNS)
        sources = {
            f"profile of {pool['model']} on {pool['arrangement']}: {pool['provenance']['kind']}, "
            f"{pool['provenance']['source']}": None
            for pool in answer["pools"]
        }
        pools = listed([_pool(pool) for pool in answer["pools"]], TOGETHER)
        splits = listed([_split(row) for row in answer["splits"]], SPLITS)
        splits += [""] * bool(splits)
        notes = [*sources, *(f"note: {note}" for note in answer["notes"])]
        how = [f"sized by {answer['sized_by']}", bias_in_words()]
        return "\n".join([*rows, "", *pools, "", *splits, *how, *notes])


def _split(row: dict[str, Any]) -> dict[str, Any]:
    """Return a division of GPUs between attention and FFN with its remarks."""
    remarks = [word for word in ("best", "stated") if row[word]] + [row["note"]] * bool(row["note"])
    replica = f"{row['gpus']} x {row['gpu']}, {row['role']}"
    return row | {"replica": replica, "said": ", ".join(remarks)}


def _pool(pool: dict[str, Any]) -> dict[str, Any]:
    """Return a pool with the requests/s per replica in pools of several sizes."""
    isl = pool["input_tps"] / pool["max_rps"]
    return pool | {f"each_{n}": pool["pool_tps"][n - 1] / n / isl for n in POOLS}
