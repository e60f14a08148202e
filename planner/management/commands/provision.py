"""bin/manage provision: a model by operators, by layers and by whole replicas, side by side."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from simulation.provisioning.levels import LEVELS, METHODS


class Command(RunCommand):
    help = (
        "Provision a scenario below the replica: GPUs, power and memory by operators, by layers "
        "and by whole replicas, for the busiest hour of its window."
    )
    kind = Run.Kind.PROVISION

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--level", choices=[*LEVELS, "all"], default="all")
        parser.add_argument(
            "--method",
            choices=METHODS,
            default="greedy",
            help="exact: fewest slots, proven, then placed; brute: by enumeration, small cases",
        )

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"level": options["level"], "method": options["method"]}

    def words(self, answer: dict[str, Any]) -> str:
        rows = [answer["headline"], *answer["warnings"]]
        line = "{:<9} {:>6} {:>10} {:>11} {:>13} {:>9} {:>8}".format
        rows.append(line("level", "GPUs", "power", "memory", "latency", "limit", "gap"))
        for level, one in answer["levels"].items():
            rows.append(
                line(
                    level,
                    one["gpus"],
                    f"{one['energy_w']:,.0f} W",
                    f"{one['memory_gb']:,.0f} GB",
                    f"{one['latency_ms']:,.1f} ms",
                    f"{one['slo_ms']:,.0f} ms",
                    "-" if one["gap"] is None else f"{one['gap']:.1%}",
                )
            )
        rows.append("gap: of devices, to a proven bound; latency: of the phase nearest its limit")
        for pool in answer["pools"]:
            if pool["chosen"]:
                counts = ", ".join(
                    f"{level} {pool['levels'][level]['gpus']}"
                    for level in answer["levels"]
                    if level in pool["levels"]
                )
                rows.append(
                    f"{pool['phase']} of {pool['model']} in {pool['region']} on {pool['gpu']}, "
                    f"{pool['requests_s']:.3g} requests/s of {pool['isl']:,.0f} in and "
                    f"{pool['osl']:,.0f} out within {pool['slo_ms']:,.0f} ms: {counts} GPUs"
                )
        return "\n".join(rows + [f"note: {note}" for note in answer["notes"]])
