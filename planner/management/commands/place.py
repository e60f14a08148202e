"""``bin/manage place``: place replicas in the network, and show the effect on requests."""

from __future__ import annotations

from typing import Any

from planner.domain.placement.methods import METHODS
from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = (
        "Place the instances of a scenario in its network: Algorithm 4 of HeteroScale, the exact "
        "placement and a baseline that ignores topology, with what each does to requests."
    )
    kind = Run.Kind.PLACE

    def words(self, answer: dict[str, Any]) -> str:
        rows = [answer["headline"], *answer["warnings"]]
        line = "{:<18} {:>6} {:>8} {:>9} {:>6} {:>8} {:>9} {:>9} {:>10} {:>8} {:>8}".format
        rows.append(
            line(
                "method", "units", "unplaced", "affinity", "split", "KV lost", "high free",
                "fragments", "points", "gap", "seconds",
            )
        )  # fmt: skip
        methods = answer["methods"]
        for method in (methods[name] for name in METHODS if name in methods):
            honoured, gap = method["affinity_honoured"], method["gap"]
            rows.append(
                line(
                    method["label"],
                    f"{method['units']:,}",
                    f"{method['unplaced_units']:,}",
                    "-" if honoured is None else f"{honoured:.1%}",
                    f"{method['split_units']:,}",
                    f"{method['bandwidth_lost']:.1%}",
                    f"{method['high_free_gpus']:,}",
                    f"{method['fragmented_gpus']:,}",
                    f"{method['points']:,.1f}",
                    "-" if gap is None else f"{gap:.3%}",
                    f"{method['seconds']:.2f}",
                )
            )
        rows.append(
            "KV lost: of the bandwidth between prefill and decode; high free: GPUs of "
            "high-priority subgroups; fragments: GPUs left over on partly used nodes"
        )
        if answer["simulation"]["words"]:
            rows.append(f"simulated, {answer['simulation']['words']}")
        return "\n".join(rows + [f"note: {note}" for note in answer["notes"]])
