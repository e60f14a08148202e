"""Build the part of a placement page beside its report: the tree filled by one method."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from planner.domain.kinds.place import PlaceResult
from planner.domain.placement.methods import METHODS
from planner.domain.serialise import gpu_words
from planner.models import Run
from planner.selectors.runs import run_table, typed_result

STATES = {
    "start": "As it is",
    "grown": "After the scale-out",
    "shrunk": "After the scale-in that follows",
}
COLOURS = 8  # classes place-0 to place-7 of the style sheet
MANY = 400  # most nodes drawn one by one; larger trees have a bar per S1 switch and GPU type
LETTERS = {"prefill": "P", "decode": "D", "both": "M", "attention": "A", "ffn": "F"}
MEANINGS = {
    "P": "prefill",
    "D": "decode",
    "M": "mixed: prefill and decode",
    "A": "attention of the prefill",
    "F": "FFN of the prefill",
}
CELL = 10  # width of a GPU in the picture
BAR = 160  # width of a bar that represents several nodes


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the tree of one region in one state, as ``params`` choose."""
    result = typed_result(run, PlaceResult)
    names = [name for name in METHODS if name in result.methods]
    method = _chosen(params.get("method", ""), names[::-1])
    placed = result.methods[method]
    figures = {"start": placed.start, "grown": placed.grown, "shrunk": placed.shrunk}
    states = [name for name in STATES if figures[name] is not None]
    state = _chosen(params.get("state", ""), states)
    regions = [tree.region for tree in result.topology]
    region = _chosen(params.get("region", ""), regions)
    nodes = run_table(run, "nodes").filter(pl.col("region") == region)
    placed_instances = run_table(run, "instances").filter(
        (pl.col("method") == method) & pl.col("node").is_in(nodes["node"].to_list())
    )
    shown_instances, first_instances = (
        placed_instances.filter(pl.col("state") == name) for name in (state, "start")
    )
    first_numbers = set(first_instances["instance"].to_list())
    services = [row.name for row in result.services]
    letters = sorted(
        {_letter(row) for row in shown_instances.iter_rows(named=True)}, key="PDMAF".index
    )
    shown_state = figures[state] or placed.start
    return {
        "run": run,
        "method": method,
        "method_choices": [(name, result.methods[name].label) for name in names],
        "state": state,
        "state_choices": [(name, STATES[name]) for name in states],
        "region": region,
        "regions": regions,
        "used": int(shown_instances["gpus"].sum()),
        "unplaced": shown_state.unplaced_units,  # over all regions
        "chosen_services": placed.services,
        "legend": [
            (name, f"place-{i % COLOURS}")
            for i, name in enumerate(services)
            if name in set(shown_instances["service"].to_list())
        ],
        "letters": [(letter, MEANINGS[letter]) for letter in letters],
        "grouped": nodes.height > MANY,
        "tree": _tree(
            nodes, shown_instances, services, first_numbers if state == "grown" else None
        ),
    }


def _chosen(name: str, known: list[str]) -> str:
    return name if name in known else known[0]


def _letter(row: dict[str, Any]) -> str:
    return LETTERS.get(row["part"], LETTERS.get(row["role"], "M"))


def _tree(
    nodes: pl.DataFrame,
    instances: pl.DataFrame,
    services: list[str],
    first_numbers: set[int] | None,
) -> list[dict[str, Any]]:
    """Return the S2 switches, with S1 switches and racks; bars above ``MANY`` nodes."""
    colour = {name: f"place-{i % COLOURS}" for i, name in enumerate(services)}
    by_node: dict[int, list[dict[str, Any]]] = {}
    for row in instances.sort("service", "unit", "role", "instance").iter_rows(named=True):
        by_node.setdefault(row["node"], []).append(row)
    spines = []
    for (s2,), s2_nodes in nodes.group_by("s2", maintain_order=True):
        switches = []
        for (s1,), s1_nodes in s2_nodes.group_by("s1", maintain_order=True):
            rows = s1_nodes.to_dicts()
            listed = [placed for row in rows for placed in by_node.get(row["node"], [])]
            used = sum(placed["gpus"] for placed in listed)
            switch: dict[str, Any] = {
                "number": s1,
                "priority": rows[0]["priority"],
                "types": ", ".join(dict.fromkeys(row["gpu"] for row in rows)),
                "gpus": sum(row["gpus"] for row in rows),
                "used": used,
                "words": _words(listed),
            }
            if nodes.height > MANY:
                switch["bars"] = _bars(rows, by_node, colour)
            else:
                switch["racks"] = [
                    {
                        "number": rack,
                        "gpu": ", ".join(dict.fromkeys(row["gpu"] for row in in_rack.to_dicts())),
                        "nodes": [
                            _node(row, by_node.get(row["node"], []), colour, first_numbers)
                            for row in in_rack.to_dicts()
                        ],
                    }
                    for (rack,), in_rack in s1_nodes.group_by("rack", maintain_order=True)
                ]
            switches.append(switch)
        gpus = sum(row["gpus"] for row in switches)
        used = sum(row["used"] for row in switches)
        spines.append({"number": s2, "gpus": gpus, "used": used, "switches": switches})
    return spines


def _node(
    row: dict[str, Any],
    listed: list[dict[str, Any]],
    colour: dict[str, str],
    first_numbers: set[int] | None,
) -> dict[str, Any]:
    """Return a node as boxes: instances (new if not in ``first_numbers``), free GPUs."""
    gpus_in_use, boxes = 0, []
    for instance in listed:
        boxes.append(
            {
                "x": gpus_in_use * CELL,
                "width": instance["gpus"] * CELL - 1,
                "middle": gpus_in_use * CELL + instance["gpus"] * CELL / 2,
                "colour": colour[instance["service"]],
                "letter": _letter(instance),
                "new": first_numbers is not None and instance["instance"] not in first_numbers,
            }
        )
        gpus_in_use += instance["gpus"]
    free = row["gpus"] - gpus_in_use
    free_words = f"{free} free" if free else "full"
    return {
        "width": row["gpus"] * CELL,
        "boxes": boxes,
        "free": [i * CELL for i in range(gpus_in_use, row["gpus"])],
        "title": f"Node {row['node']}, {row['gpus']} x {row['gpu']}: "
        + "; ".join([*_words(listed), free_words]),
    }


def _bars(
    rows: list[dict[str, Any]], by_node: dict[int, list[dict[str, Any]]], colour: dict[str, str]
) -> list[dict[str, Any]]:
    """Return one bar per GPU type under a switch; boxes are the shares of each service and role."""
    bars = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        of_type = [row for row in rows if row["gpu"] == gpu]
        total = sum(row["gpus"] for row in of_type)
        gpus_in_use: dict[tuple[str, str], int] = {}
        for instance in (instance for row in of_type for instance in by_node.get(row["node"], [])):
            key = (instance["service"], _letter(instance))
            gpus_in_use[key] = gpus_in_use.get(key, 0) + instance["gpus"]
        offset, boxes = 0.0, []
        for (service, letter), count in sorted(gpus_in_use.items()):
            width = BAR * count / total
            boxes.append(
                {
                    "x": round(offset, 2),
                    "width": round(max(0.5, width - 0.5), 2),
                    "middle": round(offset + width / 2, 2),
                    "colour": colour[service],
                    "letter": letter if width >= CELL else "",
                }
            )
            offset += width
        bars.append(
            {
                "gpu": gpu,
                "gpus": total,
                "used": sum(gpus_in_use.values()),
                "width": BAR,
                "boxes": boxes,
            }
        )
    return bars


def _words(listed: list[dict[str, Any]]) -> list[str]:
    """Return in words what runs at a place, for readers who cannot see colours."""
    sums: dict[tuple[str, str], int] = {}
    for instance in listed:
        key = (instance["service"], MEANINGS[_letter(instance)].split(":")[0])
        sums[key] = sums.get(key, 0) + instance["gpus"]
    return [
        f"{service}, {role}: {gpu_words(count)}" for (service, role), count in sorted(sums.items())
    ]
