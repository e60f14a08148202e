"""bin/manage provision: a model by operators, by layers and by whole replicas, side by side."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from planner.management.base import RunCommand
from planner.models import Run
from planner.studies.commands.provision import IMAGE_TOKENS, Asked
from planner.studies.provisioning.over_time import OBSERVED, OFF, OVER_TIME
from planner.studies.provisioning.problems import AUTO, BATCH_WAITS, FREE, SOURCES
from simulation.provisioning.levels import LEVELS, METHODS

WAYS = {
    "apart": "apart",
    "together": "on common GPUs",
    "chunked_model": "in chunks by whole replicas",
    "chunked_operator": "in chunks by operators",
}


def quantity(text: str) -> float:
    """A number of at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError("must be a number of at least 0")
    return value


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

        parser.add_argument(
            "--kernels",
            choices=SOURCES,
            default=AUTO,
            help="auto: measured kernels that were uploaded for the GPU, else efficiency factors",
        )
        parser.add_argument(
            "--interference",
            choices=SOURCES,
            default=AUTO,
            help="auto: measured slowdowns of those files, else the stated physical model",
        )
        parser.add_argument(
            "--images",
            type=quantity,
            default=0.0,
            metavar="N",
            help="images per request of models with an encoder; default: %(default)g",
        )
        parser.add_argument(
            "--image-tokens",
            type=quantity,
            default=IMAGE_TOKENS,
            metavar="N",
            help="patches that the encoder reads per image; default: %(default)g (assumed)",
        )
        parser.add_argument(
            "--single-stream",
            action="store_true",
            help="GPUs run one stream at a time: extra replicas stand beside nothing",
        )
        parser.add_argument(
            "--batch-wait",
            choices=BATCH_WAITS,
            default=FREE,
            help="counted: the time that batches take to fill is part of the latency, and the "
            "largest batch is chosen with the plan; the source leaves it out",
        )
        parser.add_argument(
            "--over-time",
            nargs="?",
            choices=OVER_TIME,
            const=OBSERVED,
            default=OFF,
            help="also window by window along the traffic, on what was observed (default) or on a "
            "forecast by the minute",
        )

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {name: options[name] for name in Asked.__dataclass_fields__}

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
        for one in answer.get("sharing", {}).get("services", ()):
            ways = ", ".join(f"{WAYS[name]} {way['gpus']}" for name, way in one["ways"].items())
            rows.append(f"both phases of {one['model']} in {one['region']}: {ways} GPUs")
        rows += over_time(answer["over_time"]) if "over_time" in answer else []
        return "\n".join(rows + [f"note: {note}" for note in answer["notes"]])


def over_time(found: dict[str, Any]) -> list[str]:
    """The courses as lines."""
    line = "{:<18} {:<9} {:>10} {:>9} {:>10} {:>9} {:>9}".format
    rows = [
        f"{found['windows']:,} windows of {found['window_s']:g} s, planned on {found['known']}; "
        f"headroom for {found['attainment']:.0%} of requests met, in hindsight",
        line("phase", "level", "GPU-hours", "energy", "memory", "met", "headroom"),
    ]
    for pool in found["pools"]:
        for level, one in pool["levels"].items():
            rows.append(
                line(
                    f"{pool['phase']} {pool['model']}"[:18],
                    level,
                    f"{one['gpu_hours']:,.1f}",
                    f"{one['kwh']:,.1f} kWh",
                    f"{one['memory_gb']:,.0f} GB",
                    f"{one['attainment']:.1%}",
                    f"{one['headroom']:.0%}",
                )
            )
    return rows
