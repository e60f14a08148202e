"""``bin/manage provision``: compare provisioning by operators, by layers and by whole replicas."""

from __future__ import annotations

from typing import Any

from planner.domain.provisioning.windows import OBSERVED
from planner.management.base import RunCommand
from planner.models import Run

WAYS = {
    "apart": "apart",
    "together": "on common GPUs",
    "chunked_model": "in chunks by whole replicas",
    "chunked_operator": "in chunks by operators",
}


class Command(RunCommand):
    help = (
        "Provision a scenario below the replica: GPUs, power and memory by operators, by layers "
        "and by whole replicas, for the busiest hour of its window."
    )
    kind = Run.Kind.PROVISION
    alone = {"over_time": OBSERVED}

    def words(self, answer: dict[str, Any]) -> str:
        rows = [answer["headline"], *answer["warnings"]]
        line = "{:<9} {:>6} {:>10} {:>11} {:>13} {:>9} {:>8}".format
        rows.append(line("level", "GPUs", "power", "memory", "latency", "limit", "gap"))
        for level, level_row in answer["levels"].items():
            rows.append(
                line(
                    level,
                    level_row["gpus"],
                    f"{level_row['energy_w']:,.0f} W",
                    f"{level_row['memory_gb']:,.0f} GB",
                    f"{level_row['latency_ms']:,.1f} ms",
                    f"{level_row['slo_ms']:,.0f} ms",
                    "-" if level_row["gap"] is None else f"{level_row['gap']:.1%}",
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
                rows += replays(answer, pool)
                rows += block(pool)
        for service in answer.get("sharing", {}).get("services", ()):
            ways = ", ".join(f"{WAYS[name]} {way['gpus']}" for name, way in service["ways"].items())
            rows.append(f"both phases of {service['model']} in {service['region']}: {ways} GPUs")
        rows += over_time(answer["over_time"]) if "over_time" in answer else []
        return "\n".join(rows + [f"note: {note}" for note in answer["notes"]])


def replays(answer: dict[str, Any], pool: dict[str, Any]) -> list[str]:
    """Return the planned latency of each level and the latency in its replay."""
    came = [
        f"{level} {row['latency_ms']:,.0f} ms promised, {row['replayed']['mean_ms']:,.0f} came "
        f"(p95 {row['replayed']['p95_ms']:,.0f}, p99 {row['replayed']['p99_ms']:,.0f}, "
        f"{row['replayed']['attainment']:.1%} within it)"
        for level, row in pool["levels"].items()
        if level in answer["levels"] and "replayed" in row
    ]
    return [f"  replayed: {'; '.join(came)}"] if came else []


def block(pool: dict[str, Any]) -> list[str]:
    """Return the results of each method on the block that was enumerated exhaustively."""
    tried = pool["block"]
    if not tried:
        return []
    if tried["refused"]:
        return [f"  block of {', '.join(tried['operators'])}: {tried['refused']}"]
    rows = [
        f"  block of {', '.join(tried['operators'])}: {tried['plans']:,.0f} plans of up to "
        f"{tried['replicas']} replicas, within {tried['slo_ms']:,.1f} ms on average"
    ]
    for method in tried["methods"]:
        if method["gpus"] is None:
            rows.append(f"    {method['method']}: no plan")
            continue
        parts = "; ".join(
            f"{part['operator']} {part['replicas']} x {part['gpus']} at {part['sm_share']:.0%}, "
            f"batch {part['batch']}"
            for part in method["operators"]
        )
        came = ""
        if method["p95_ms"] is not None:
            came = f", {method['mean_ms']:,.1f} came (p95 {method['p95_ms']:,.1f})"
        unit = "GPU" if method["gpus"] == 1 else "GPUs"
        rows.append(
            f"    {method['method']}: {method['gpus']:g} {unit} "
            f"({method['above']:.1%} above the least), "
            f"{method['latency_ms']:,.1f} ms promised{came}; {parts}"
        )
    return rows


def over_time(course: dict[str, Any]) -> list[str]:
    """Return the results over time as lines."""
    line = "{:<18} {:<9} {:>10} {:>9} {:>10} {:>9} {:>9} {:>16}".format
    windows = course["replayed_windows"]
    rows = [
        f"{course['windows']:,} windows of {course['window_s']:g} s, planned on {course['known']}; "
        f"headroom for {course['attainment']:.0%} of requests met, in hindsight, "
        + (f"in a replay of {windows} of them or more" if windows else "by mean latency"),
        line("phase", "level", "GPU-hours", "energy", "memory", "met", "headroom", "held, met"),
    ]
    for pool in course["pools"]:
        for level, row in pool["levels"].items():
            held = row.get("held")
            rows.append(
                line(
                    f"{pool['phase']} {pool['model']}"[:18],
                    level,
                    f"{row['gpu_hours']:,.1f}",
                    f"{row['kwh']:,.1f} kWh",
                    f"{row['memory_gb']:,.0f} GB",
                    f"{row['attainment']:.1%}",
                    f"{row['headroom']:.0%}",
                    f"{held['gpu_hours']:,.1f}, {held['attainment']:.1%}" if held else "-",
                )
            )
    rows.append("held: GPU-hours of the plan of the busiest hour all the time, and what it meets")
    return rows
