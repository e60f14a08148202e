"""bin/manage place: where instances go in the network, and what that does to requests."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.errors import PlannerError
from planner.management.base import RunCommand
from planner.models import Run
from planner.studies.commands.place import COUNTS, METHODS

MOST_GROWTH = 100.0


class Command(RunCommand):
    help = (
        "Place the instances of a scenario in its network: Algorithm 4 of HeteroScale, the exact "
        "placement and a baseline that ignores topology, with what each does to requests."
    )
    kind = Run.Kind.PLACE

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--method", choices=[*METHODS, "all"], default="all")
        parser.add_argument(
            "--counts",
            choices=COUNTS,
            help="what to place: today's fleet, the plan's largest or last period; left out: "
            "today's where the scenario has it, else the largest",
        )
        parser.add_argument(
            "--ratio", help="P:D, such as 1:2: place mixed pools as prefill and decode apart"
        )
        parser.add_argument(
            "--grow", type=float, help="then scale out by this share and in again; default 0.5"
        )
        parser.add_argument("--time-limit", type=float, help="seconds of the exact method")

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {
            "method": options["method"],
            "counts": options["counts"],
            "ratio": options["ratio"],
            "grow": options["grow"],
            "time_limit_s": options["time_limit"],
        }
        if given["ratio"] is not None:
            given["ratio"] = ratio_of(given["ratio"])
        if given["grow"] is not None and not 0 <= given["grow"] <= MOST_GROWTH:
            raise PlannerError(f"--grow {given['grow']:g}: give a share from 0 to {MOST_GROWTH:g}.")
        limit = given["time_limit_s"]
        if limit is not None and not 0 < limit <= 3600:
            raise PlannerError(f"--time-limit {limit:g}: give up to 3600 seconds.")
        return {name: value for name, value in given.items() if value is not None}

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


def ratio_of(text: str) -> list[int]:
    """[P, D] of "P:D"."""
    left, colon, right = text.partition(":")
    if not (colon and left.isdecimal() and right.isdecimal() and int(left) and int(right)):
        raise PlannerError(f"--ratio {text}: give P:D, such as 1:2, both at least 1.")
    return [int(left), int(right)]
