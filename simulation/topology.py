"""Location of GPUs in the network: data centres, S2 and S1 switches, racks (S0) and nodes.

Seed 003, section 2 ("Hierarchical Network Topology") and figure 3: racks under local switches (S0)
are aggregated into minipods (S1) and bigpods (S2). The tree is flat arrays over its nodes. So a
question about thousands of them is one numpy call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.errors import SimulationError
from simulation.performance.specs import Provenance

# The lowest level that two instances share, nearest first; APART: none.
NODE, RACK, S1, S2, CENTRE, APART = range(6)
MOST_NODES = 1_000_000  # that fit in all data centres
LEVELS = ("node", "rack", "S1 switch", "S2 switch", "data centre", "nothing")

# Share of an instance's network bandwidth available for a KV cache, by lowest common level. The
# seed (section 1) observes about 20% less across switches. Two things are our assumptions. A
# further tier of switches costs the same again, and racks of one S1 switch lose nothing.
KV_SHARE = (1.0, 1.0, 1.0, 0.8, 0.64, 0.0)
KV_SHARE_SOURCE = Provenance(
    "assumed",
    "HeteroScale, section 1: about 20% less across S1 switches. Assumed: the same again across S2",
)


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A tree of nodes.

    ``rack``, ``s1``, ``s2`` and ``centre`` are the parents of each node. Racks and switches are
    numbered over the whole tree, not within their parent.
    """

    gpu_types: tuple[str, ...]
    centres: tuple[str, ...]  # names of the data centres (regions)
    rack: IntArray  # [n]
    s1: IntArray  # [n]
    s2: IntArray  # [n]
    centre: IntArray  # [n] index of ``centres``
    gpu: IntArray  # [n] index of ``gpu_types``
    gpus: IntArray  # [n] GPUs of the node

    def __post_init__(self) -> None:
        for name in ("rack", "s1", "s2", "centre", "gpu", "gpus"):
            array = np.array(getattr(self, name), np.int64)
            if array.shape != (len(self),):
                raise SimulationError(f"Topology: {name} must have one value per node.")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        for below, above in (("rack", "s1"), ("s1", "s2"), ("s2", "centre")):
            pairs = np.unique(np.stack([getattr(self, below), getattr(self, above)]), axis=1)
            # A repeated first entry means two parents.
            if len(np.unique(pairs[0])) != pairs.shape[1]:
                raise SimulationError(f"Topology: a {below} lies under two of {above}.")
        if self.gpus.min(initial=1) < 1 or self.gpu.min(initial=0) < 0:
            raise SimulationError("Topology: every node needs a GPU type and at least one GPU.")
        if self.gpu.max(initial=-1) >= len(self.gpu_types):
            raise SimulationError("Topology: a node has a GPU type that is not listed.")
        if self.centre.max(initial=-1) >= len(self.centres):
            raise SimulationError("Topology: a node lies in a data centre that is not listed.")

    def __len__(self) -> int:
        return len(self.gpu)

    def above(self, level: int) -> IntArray:
        """Return the number of each node's rack, switch or data centre at ``level``, ``[n]``."""
        parents: IntArray = (np.arange(len(self)), self.rack, self.s1, self.s2, self.centre)[level]
        return parents


@dataclass(frozen=True, slots=True)
class Shape:
    """The structure of a data centre: numbers of switches, racks and nodes, equal in all branches.

    S2 switches come in three kinds, the high, medium and low priority of the seed's RDMA subgroups
    (section 3.3). ``mixed_s1`` of them have S1 switches with several GPU types in different racks.
    ``mixed_s2`` of them have S1 switches of one type each, but not all the same; None: all that are
    not ``mixed_s1``. The others have a single type.
    """

    s2: int
    s1_per_s2: int
    racks_per_s1: int
    nodes_per_rack: int
    mixed_s1: int = 0
    mixed_s2: int | None = None

    @property
    def nodes_per_s1(self) -> int:
        return self.racks_per_s1 * self.nodes_per_rack

    @property
    def nodes(self) -> int:
        return self.s2 * self.s1_per_s2 * self.nodes_per_s1


def build_topology(
    gpu_types: Sequence[str],
    centres: Sequence[tuple[str, Shape, Sequence[int]]],
    gpus_per_node: Sequence[int],
) -> Topology:
    """Return the tree of the data centres ``centres``.

    A data centre is its name, its shape, and its number of nodes by GPU type. ``gpus_per_node`` is
    by GPU type too. Raises ``SimulationError`` if the nodes do not fit in a shape, or if more than
    MOST_NODES fit in all shapes.
    """
    node_count = sum(shape.nodes for _, shape, _ in centres)
    if node_count > MOST_NODES:
        raise SimulationError(
            f"The network has places for {node_count:,} nodes and {MOST_NODES:,} are allowed. "
            "Lower S2 switches, S1 switches, racks or nodes per rack."
        )
    # Rack, s1, s2, centre and gpu of the nodes of each data centre
    columns = [np.zeros((5, 0), np.int64)]
    racks = s1s = s2s = 0  # of the data centres before
    for c, (name, shape, nodes) in enumerate(centres):
        if sum(nodes) > shape.nodes:
            raise SimulationError(
                f"The topology of {name} has places for {shape.nodes:,} nodes and its GPUs need "
                f"{sum(nodes):,}. Add S2 switches, S1 switches, racks or nodes per rack."
            )
        placed = sorted(_node_positions(shape, np.array(nodes, np.int64)))
        position, gpu = np.array(placed, np.int64).reshape(-1, 2).T
        rack = position // shape.nodes_per_rack
        s1 = rack // shape.racks_per_s1
        s2 = s1 // shape.s1_per_s2
        centre = np.full(len(placed), c)
        columns.append(np.stack([racks + rack, s1s + s1, s2s + s2, centre, gpu]))
        s2s += shape.s2
        s1s += shape.s2 * shape.s1_per_s2
        racks += shape.s2 * shape.s1_per_s2 * shape.racks_per_s1
    in_rack, in_s1, in_s2, in_centre, of_gpu = np.concatenate(columns, axis=1)
    return Topology(
        gpu_types=tuple(gpu_types),
        centres=tuple(name for name, _, _ in centres),
        rack=in_rack,
        s1=in_s1,
        s2=in_s2,
        centre=in_centre,
        gpu=of_gpu,
        gpus=np.array(gpus_per_node, np.int64)[of_gpu],
    )


def _node_positions(shape: Shape, remaining: IntArray) -> list[tuple[int, int]]:
    """Return the position of each node in a data centre, and the index of its GPU type.

    Positions count from 0 to ``shape.nodes``, rack by rack. ``remaining`` are the nodes of each GPU
    type, and is reduced in place to those without a block. A block of positions is filled with the
    type that has the most nodes remaining. Types that the block's parent already has are skipped,
    if others remain (for blocks and parents see ``_block_and_parent``). Nodes without a block go to
    any free position.
    """
    placed: list[tuple[int, int]] = []
    per_s2 = shape.s1_per_s2 * shape.nodes_per_s1
    for s2 in range(shape.s2):
        block_size, parent_size = _block_and_parent(shape, s2)
        for start in range(s2 * per_s2, (s2 + 1) * per_s2, block_size):
            if start % parent_size == 0:
                allowed = remaining.copy()  # types that the parent lacks
            gpu = int(np.argmax(allowed if allowed.any() else remaining))
            count = min(block_size, int(remaining[gpu]))
            placed += [(start + i, gpu) for i in range(count)]
            remaining[gpu] -= count
            allowed[gpu] = 0
    free_positions = sorted(set(range(shape.nodes)) - {position for position, _ in placed})
    types_left = np.repeat(np.arange(len(remaining)), remaining).tolist()
    return placed + list(zip(free_positions, types_left, strict=False))


def _block_and_parent(shape: Shape, s2: int) -> tuple[int, int]:
    """Return the positions in a block of one GPU type, and in its parent, which mixes blocks."""
    per_s2 = shape.s1_per_s2 * shape.nodes_per_s1
    mixed_s2 = shape.s2 - shape.mixed_s1 if shape.mixed_s2 is None else shape.mixed_s2
    if s2 < shape.mixed_s1:
        return shape.nodes_per_rack, shape.nodes_per_s1
    if s2 < shape.mixed_s1 + mixed_s2:
        return shape.nodes_per_s1, per_s2
    return per_s2, per_s2
