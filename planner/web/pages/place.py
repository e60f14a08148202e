"""Build the part of a placement page beside its report: the tree filled by one method."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import polars as pl

from planner.domain.kinds.place import PlaceResult
from planner.domain.placement.methods import METHODS
from planner.domain.reports.place import services_table
from planner.domain.serialise import gpu_words
from planner.models import Run
from planner.outputs.render.html import display_table
from planner.selectors.runs import run_table, typed_result
from planner.web.pages.selects import Select
from planner.web.request import TemplateContext

Row = TypeVar("Row")
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


@dataclass(frozen=True, slots=True)
class _Node:
    """A row of the table ``nodes``."""

    node: int
    s2: int
    s1: int
    rack: int
    priority: str
    gpu: str
    gpus: int


@dataclass(frozen=True, slots=True)
class _Instance:
    """A row of the table ``instances``: a replica, or a part of one, on a node."""

    node: int
    instance: int
    service: str
    role: str
    part: str
    gpus: int

    @property
    def letter(self) -> str:
        """Return the letter in its box: of its part of a replica, else of its role."""
        return LETTERS.get(self.part, LETTERS.get(self.role, "M"))


@dataclass(frozen=True, slots=True)
class _Box:
    """A box in the picture of a node or a bar; lengths are in units of the SVG."""

    x: float
    width: float
    middle: float
    colour: str
    letter: str
    new: bool = False  # since the start


@dataclass(frozen=True, slots=True)
class _Strip:
    """The picture of a node, or of all GPUs of a type under a switch, filled from the left."""

    title: str
    width: int
    boxes: list[_Box]
    free: list[int]  # positions of the free GPUs of a node


@dataclass(frozen=True, slots=True)
class _Switch:
    """A switch with its GPUs, and how many of them are in use."""

    number: int
    gpus: int
    used: int


@dataclass(frozen=True, slots=True)
class _S1Switch(_Switch):
    """An S1 switch with its racks, or in a large tree with a bar per GPU type."""

    priority: str
    types: str
    words: list[str]
    bars: list[_Strip]
    racks: list[tuple[str, list[_Strip]]]  # GPU types and nodes of each rack


@dataclass(frozen=True, slots=True)
class _S2Switch(_Switch):
    switches: list[_S1Switch]


def page_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the tree of switches of one region, with the instances that a method placed.

    ``params`` choose the region, the method, and the state: at the start, grown or shrunk. In the
    grown state, instances that were not there at the start are marked.
    """
    result = typed_result(run, PlaceResult)
    method_labels = {name: result.methods[name].label for name in METHODS if name in result.methods}
    last_method = list(method_labels)[-1]
    methods = Select.of(params, "method", "Placed by", method_labels, default=last_method)
    placed = result.methods[methods.chosen]
    by_state = {"start": placed.start, "grown": placed.grown, "shrunk": placed.shrunk}
    state_labels = {name: STATES[name] for name, figures in by_state.items() if figures is not None}
    states = Select.of(params, "state", "Moment", state_labels)
    region_labels = {tree.region: tree.region for tree in result.topology}
    regions = Select.of(params, "region", "Region", region_labels)

    nodes = run_table(run, "nodes").filter(pl.col("region") == regions.chosen)
    on_nodes = pl.col("node").is_in(nodes["node"].to_list())
    placed_instances = run_table(run, "instances").filter(
        (pl.col("method") == methods.chosen) & on_nodes
    )
    in_state = placed_instances.filter(pl.col("state") == states.chosen)
    in_order = in_state.sort("service", "unit", "role", "instance")
    columns = [column.name for column in fields(_Instance)]
    instances = [_Instance(*row) for row in in_order.select(columns).iter_rows()]
    numbers_at_start = None
    if states.chosen == "grown":
        first_rows = placed_instances.filter(pl.col("state") == "start")
        numbers_at_start = set(first_rows["instance"])
    colour = {service.name: f"place-{i % COLOURS}" for i, service in enumerate(result.services)}
    figures = by_state[states.chosen]
    return {
        "run": run,
        "selects": (methods, states, regions),
        "state": states.chosen,
        "region": regions.chosen,
        "many_regions": len(regions.choices) > 1,
        "used": sum(instance.gpus for instance in instances),
        "unplaced": figures.unplaced_units if figures else 0,  # over all regions
        "services": display_table(services_table(placed.services), "utc", live=True),
        "grouped": nodes.height > MANY,
        "tree": _tree(nodes, instances, colour, numbers_at_start),
        **_legend(instances, colour),
    }


def _legend(instances: Sequence[_Instance], colour: Mapping[str, str]) -> TemplateContext:
    """Return the services with their colours, and the letters with their meanings, of a picture."""
    services = {instance.service for instance in instances}
    letters = {instance.letter for instance in instances}
    return {
        "legend": [(name, its_colour) for name, its_colour in colour.items() if name in services],
        "letters": [(letter, words) for letter, words in MEANINGS.items() if letter in letters],
    }


@dataclass(frozen=True, slots=True)
class _Picture:
    """The instances on each node and their colours, from which the picture of a tree is drawn."""

    by_node: Mapping[int, list[_Instance]]
    colour: Mapping[str, str]  # class of the style sheet by service
    first_numbers: set[int] | None  # instances at the start: others are new. None: none is new

    def instances(self, nodes: Iterable[_Node]) -> list[_Instance]:
        """Return the instances on the nodes."""
        return [instance for node in nodes for instance in self.by_node.get(node.node, [])]

    def s1_switch(self, number: int, nodes: list[_Node], *, bars: bool) -> _S1Switch:
        """Return an S1 switch, with a bar per GPU type (``bars``) or with racks of nodes."""
        instances = self.instances(nodes)
        bars_of_types, racks = [], []
        if bars:
            bars_of_types = [self.bar(gpu, same_gpu) for gpu, same_gpu in _group_rows(nodes, "gpu")]
        else:
            for _, rack in _group_rows(nodes, "rack"):
                racks.append((_types(rack), [self.node(node) for node in rack]))
        return _S1Switch(
            number=number,
            gpus=sum(node.gpus for node in nodes),
            used=sum(instance.gpus for instance in instances),
            priority=nodes[0].priority,
            types=_types(nodes),
            words=_contents_words(instances),
            bars=bars_of_types,
            racks=racks,
        )

    def node(self, node: _Node) -> _Strip:
        """Return a node with a box per instance, and its free GPUs."""
        instances, shares = self.instances([node]), []
        for instance in instances:
            is_new = self.first_numbers is not None and instance.instance not in self.first_numbers
            shares.append((instance.service, instance.letter, instance.gpus, is_new))
        used = sum(instance.gpus for instance in instances)
        free = node.gpus - used
        words = [*_contents_words(instances), f"{free} free" if free else "full"]
        return _Strip(
            title=f"Node {node.node}, {node.gpus} x {node.gpu}: {'; '.join(words)}",
            width=node.gpus * CELL,
            boxes=self._boxes(shares, gpu_width=CELL, gap=1),
            free=[i * CELL for i in range(used, node.gpus)],
        )

    def bar(self, gpu: str, nodes: Iterable[_Node]) -> _Strip:
        """Return a bar for the nodes of a GPU type, with the share of each service and role."""
        total = sum(node.gpus for node in nodes)
        used = Counter[tuple[str, str]]()
        for instance in self.instances(nodes):
            used[instance.service, instance.letter] += instance.gpus
        shares = [
            (service, letter, gpus, False) for (service, letter), gpus in sorted(used.items())
        ]
        boxes = self._boxes(shares, gpu_width=BAR / total, gap=0.5)
        return _Strip(f"{gpu}: {used.total()} of {total}", BAR, boxes, [])

    def _boxes(
        self, shares: Iterable[tuple[str, str, int, bool]], *, gpu_width: float, gap: float
    ) -> list[_Box]:
        """Return boxes side by side, one for each (service, letter, GPUs, whether it is new)."""
        boxes, x = list[_Box](), 0.0
        for service, letter, gpus, new in shares:
            width = gpus * gpu_width
            boxes.append(
                _Box(
                    x=round(x, 2),
                    width=round(max(0.5, width - gap), 2),
                    middle=round(x + width / 2, 2),
                    colour=self.colour[service],
                    letter=letter if width >= CELL else "",
                    new=new,
                )
            )
            x += width
        return boxes


def _tree(
    nodes: pl.DataFrame, instances: Iterable[_Instance], colour: Mapping[str, str],
    first_numbers: set[int] | None,
) -> list[_S2Switch]:  # fmt: skip
    """Return the S2 switches with their S1 switches, each with its racks of nodes.

    A tree of more than MANY nodes has bars per GPU type instead of racks. ``first_numbers`` are the
    instances at the start. All others are marked as new, unless it is None.
    """
    by_node = dict(_group_rows(instances, "node"))
    picture = _Picture(by_node, colour, first_numbers)
    columns = [column.name for column in fields(_Node)]
    rows = [_Node(*row) for row in nodes.select(columns).iter_rows()]
    is_large = nodes.height > MANY
    tree = []
    for s2, nodes_of_s2 in _group_rows(rows, "s2"):
        switches = [
            picture.s1_switch(s1, nodes_of_s1, bars=is_large)
            for s1, nodes_of_s1 in _group_rows(nodes_of_s2, "s1")
        ]
        gpus = sum(switch.gpus for switch in switches)
        used = sum(switch.used for switch in switches)
        tree.append(_S2Switch(s2, gpus, used, switches))
    return tree


def _group_rows(rows: Iterable[Row], name: str) -> list[tuple[Any, list[Row]]]:
    """Return the rows grouped by the attribute ``name``, in the order of first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(getattr(row, name), []).append(row)
    return list(groups.items())


def _types(rows: Iterable[_Node]) -> str:
    """Return the GPU types of nodes, as text."""
    return ", ".join(dict.fromkeys(row.gpu for row in rows))


def _contents_words(instances: Iterable[_Instance]) -> list[str]:
    """Return the GPUs of each service and role in words, for readers who cannot see colours."""
    gpus = Counter[tuple[str, str]]()
    for instance in instances:
        role, _, _ = MEANINGS[instance.letter].partition(":")
        gpus[instance.service, role] += instance.gpus
    return [
        f"{service}, {role}: {gpu_words(count)}" for (service, role), count in sorted(gpus.items())
    ]
