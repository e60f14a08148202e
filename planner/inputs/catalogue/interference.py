"""Look up published slowdowns of operators side by side on one GPU."""

from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.hardware import known_as
from simulation.performance.efficiency import KINDS
from simulation.provisioning.interference import InterferenceTable

EVEN_SHARE = 0.5  # split of a GPU between two operators; the nearest measured split counts


def published_interference(gpu: str) -> InterferenceTable | None:
    """Return the published table of a GPU type; None if there is none.

    It has matrix products beside other kinds. Other pairs use the physical model.
    """
    document = read("interference")
    if known_as(gpu) not in document["gpus"]:
        return None
    pairs: dict[tuple[str, str], float] = {}
    alone = {}
    for kind in filter(document.__contains__, KINDS):
        shares, speeds = document[kind]["share"], document[kind]["speed"]
        alone[kind] = tuple(shares), tuple(1 / speed for speed in speeds)
        split = min(range(len(shares)), key=lambda i: abs(shares[i] - EVEN_SHARE))
        pairs[kind, "gemm"] = 1 / speeds[split]
        pairs["gemm", kind] = 1 / (1 - shares[split])
    return InterferenceTable(gpu, document["source"], pairs, alone, published=True)
