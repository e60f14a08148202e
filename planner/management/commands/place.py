"""bin/manage place: where instances go in the network, and what that does to requests."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.studies.placement.methods import METHODS


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
        for one in (methods[name] for name in METHODS if name in methods):
            honoured, gap = one["affinity_honoured"], one["gap"]
            rows.append(
                line(
                    one["label"],
                    f"{one['units']:,}",
                    f"{one['unplaced_units']:,}",
                    "-" if honoured is None else f"{honoured:.1%}",
                    f"{one['split_units']:,}",
                    f"{one['bandwidth_lost']:.1%}",
                    f"{one['high_free_gpus']:,}",
                    f"{one['fragmented_gpus']:,}",
                    f"{one['points']:,.1f}",
                    "-" if gap is None else f"{gap:.3%}",
                    f"{one['seconds']:.2f}",
                )
            )
        rows.append(
            "KV lost: of the bandwidth between prefill and decode; high free: GPUs of "
            "high-priority subgroups; fragments: GPUs left over on partly used nodes"
        )
        if answer["simulation"]["words"]:
            rows.append(f"simulated, {answer['simulation']['words']}")
        return "\n".join(rows + [f"note: {note}" for note in answer["notes"]])
