"""Build the part of a placement page beside its report: the tree filled by one method."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import polars as pl

from planner.domain.kinds.place import PlaceResult
from planner.domain.placement.methods import METHODS
from planner.domain.serialise import gpu_words
from planner.models import Run
from planner.selectors.runs import run_table, typed_result
from planner.web.request import TemplateContext

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
        """Return the letter of its part or role in the picture."""
        return LETTERS.get(self.part, LETTERS.get(self.role, "M"))


@dataclass(frozen=True, slots=True)
class _Box:
    """A box in the picture of a node or a bar; lengths are in its units."""

    x: float
    width: float
    middle: float
    colour: str
    letter: str
    new: bool = False  # since the start


@dataclass(frozen=True, slots=True)
class _NodePicture:
    """A node with the boxes of its instances, and the positions of its free GPUs."""

    width: int
    boxes: list[_Box]
    free: list[int]
    title: str


@dataclass(frozen=True, slots=True)
class _Rack:
    gpu: str
    nodes: list[_NodePicture]


@dataclass(frozen=True, slots=True)
class _Bar:
    """The GPUs of one type under a switch; boxes are the shares of each service and role."""

    gpu: str
    gpus: int
    used: int
    boxes: list[_Box]
    width: int = BAR


@dataclass(frozen=True, slots=True)
class _S1Switch:
    """An S1 switch with its racks, or in a large tree with a bar per GPU type."""

    number: int
    priority: str
    types: str
    gpus: int
    used: int
    words: list[str]
    bars: list[_Bar]
    racks: list[_Rack]


@dataclass(frozen=True, slots=True)
class _S2Switch:
    number: int
    switches: list[_S1Switch]

    @property
    def gpus(self) -> int:
        return sum(switch.gpus for switch in self.switches)

    @property
    def used(self) -> int:
        return sum(switch.used for switch in self.switches)


def page_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
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
    instances = _sorted_instances(shown_instances)
    letters = sorted({instance.letter for instance in instances}, key="PDMAF".index)
    shown_services = {instance.service for instance in instances}
    shown_state = figures[state] or placed.start
    return {
        "run": run,
        "method": method,
        "method_choices": [(name, result.methods[name].label) for name in names],
        "state": state,
        "state_choices": [(name, STATES[name]) for name in states],
        "region": region,
        "regions": regions,
        "used": sum(instance.gpus for instance in instances),
        "unplaced": shown_state.unplaced_units,  # over all regions
        "chosen_services": placed.services,
        "legend": [
            (name, f"place-{i % COLOURS}")
            for i, name in enumerate(services)
            if name in shown_services
        ],
        "letters": [(letter, MEANINGS[letter]) for letter in letters],
        "grouped": nodes.height > MANY,
        "tree": _tree(nodes, instances, services, first_numbers if state == "grown" else None),
    }


def _chosen(name: str, known: list[str]) -> str:
    """Return ``name`` if it is known, else the first name."""
    return name if name in known else known[0]


def _sorted_instances(instances: pl.DataFrame) -> list[_Instance]:
    """Return the rows of the table, sorted by service, unit and role."""
    names = [column.name for column in fields(_Instance)]
    rows = instances.sort("service", "unit", "role", "instance").select(names).iter_rows()
    return [_Instance(*row) for row in rows]


def _tree(
    nodes: pl.DataFrame,
    instances: Iterable[_Instance],
    services: Sequence[str],
    first_numbers: set[int] | None,
) -> list[_S2Switch]:
    """Return the S2 switches with their S1 switches, which have racks, or bars in a large tree.

    ``first_numbers`` are the instances at the start. All others are marked as new, unless it is
    None.
    """
    colour = {name: f"place-{i % COLOURS}" for i, name in enumerate(services)}
    by_node: dict[int, list[_Instance]] = {}
    for instance in instances:
        by_node.setdefault(instance.node, []).append(instance)
    uses_bars = nodes.height > MANY

    def s1_switch(number: int, rows: Sequence[_Node]) -> _S1Switch:
        its_instances = [instance for row in rows for instance in by_node.get(row.node, [])]
        racks = [] if uses_bars else [
            _Rack(
                _types(rack),
                [_node(row, by_node.get(row.node, []), colour, first_numbers) for row in rack],
            )
            for _, rack in _grouped(rows, "rack")
        ]  # fmt: skip
        return _S1Switch(
            number=number,
            priority=rows[0].priority,
            types=_types(rows),
            gpus=sum(row.gpus for row in rows),
            used=sum(instance.gpus for instance in its_instances),
            words=_contents_words(its_instances),
            bars=_bars(rows, by_node, colour) if uses_bars else [],
            racks=racks,
        )

    rows = [_Node(*row) for row in nodes.select(each.name for each in fields(_Node)).iter_rows()]
    return [
        _S2Switch(s2, [s1_switch(s1, under_s1) for s1, under_s1 in _grouped(under_s2, "s1")])
        for s2, under_s2 in _grouped(rows, "s2")
    ]


def _grouped(rows: Iterable[_Node], name: str) -> list[tuple[int, list[_Node]]]:
    """Return the rows by an attribute, in the order of its first row."""
    groups: dict[int, list[_Node]] = {}
    for row in rows:
        groups.setdefault(getattr(row, name), []).append(row)
    return list(groups.items())


def _types(rows: Iterable[_Node]) -> str:
    """Return the GPU types of nodes, as text."""
    return ", ".join(dict.fromkeys(row.gpu for row in rows))


def _node(
    row: _Node, instances: Iterable[_Instance], colour: Mapping[str, str], first: set[int] | None
) -> _NodePicture:
    """Return a node as boxes of its instances, and its free GPUs.

    An instance is new if its number is not among the ``first``; None: no instance is new.
    """
    gpus_in_use, boxes = 0, []
    for instance in instances:
        boxes.append(
            _Box(
                x=gpus_in_use * CELL,
                width=instance.gpus * CELL - 1,
                middle=gpus_in_use * CELL + instance.gpus * CELL / 2,
                colour=colour[instance.service],
                letter=instance.letter,
                new=first is not None and instance.instance not in first,
            )
        )
        gpus_in_use += instance.gpus
    free = row.gpus - gpus_in_use
    words = [*_contents_words(instances), f"{free} free" if free else "full"]
    return _NodePicture(
        width=row.gpus * CELL,
        boxes=boxes,
        free=[i * CELL for i in range(gpus_in_use, row.gpus)],
        title=f"Node {row.node}, {row.gpus} x {row.gpu}: {'; '.join(words)}",
    )


def _bars(
    rows: Iterable[_Node], by_node: Mapping[int, list[_Instance]], colour: Mapping[str, str]
) -> list[_Bar]:
    """Return a bar per GPU type of the nodes ``rows``, with the share of each service and role."""
    bars = []
    by_gpu: dict[str, list[_Node]] = {}
    for row in rows:
        by_gpu.setdefault(row.gpu, []).append(row)
    for gpu, of_type in by_gpu.items():
        total = sum(row.gpus for row in of_type)
        in_use = Counter[tuple[str, str]]()
        for row in of_type:
            for instance in by_node.get(row.node, []):
                in_use[instance.service, instance.letter] += instance.gpus
        offset, boxes = 0.0, []
        for (service, letter), count in sorted(in_use.items()):
            width = BAR * count / total
            boxes.append(
                _Box(
                    x=round(offset, 2),
                    width=round(max(0.5, width - 0.5), 2),
                    middle=round(offset + width / 2, 2),
                    colour=colour[service],
                    letter=letter if width >= CELL else "",
                )
            )
            offset += width
        bars.append(_Bar(gpu, total, in_use.total(), boxes))
    return bars


def _contents_words(instances: Iterable[_Instance]) -> list[str]:
    """Return the GPUs of each service and role in words, for readers who cannot see colours."""
    gpus = Counter[tuple[str, str]]()
    for instance in instances:
        role = MEANINGS[instance.letter].split(":")[0]
        gpus[instance.service, role] += instance.gpus
    return [
        f"{service}, {role}: {gpu_words(count)}" for (service, role), count in sorted(gpus.items())
    ]
