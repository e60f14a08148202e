"""Look up published slowdowns of operators that run at once on one GPU."""

from planner.inputs.catalogue.files import FOLDER, read
from planner.inputs.catalogue.hardware import gpu_known_as
from simulation.performance.efficiency import KINDS
from simulation.provisioning.interference import InterferenceTable

# Rows of tools/catalogue/measure_gpu.py, in the format of a user's own measurements.
INTERFERENCE_FILE = FOLDER / "interference.csv"
INTERFERENCE_SOURCE = (
    "one H100 and one H200 of 700 W, tools/catalogue/measure_gpu.py, PyTorch 2.11, CUDA 13.0, "
    "driver 580.159, November 2026; sizes of Llama-3.1-8B"
)
EVEN_SHARE = 0.5  # split of a GPU between two operators; the nearest measured split counts


def published_interference(gpu: str) -> InterferenceTable | None:
    """Return the published interference of matrix products with other operators.

    None if none is published for the GPU type.
    """
    document = read("interference")
    if gpu_known_as(gpu) not in document["gpus"]:
        return None
    # By (slowed kind, other kind): the slowdown if each has about half of the GPU.
    pairs: dict[tuple[str, str], float] = {}
    alone = {}  # by kind of operator: shares of the GPU, and the slowdown at each
    for kind in KINDS:
        if kind not in document:
            continue
        shares, speeds = document[kind]["share"], document[kind]["speed"]
        alone[kind] = tuple(shares), tuple(1 / speed for speed in speeds)
        nearest = min(range(len(shares)), key=lambda i: abs(shares[i] - EVEN_SHARE))
        pairs[kind, "gemm"] = 1 / speeds[nearest]
        # The product computes on the rest of the GPU, and its speed is in proportion to that.
        pairs["gemm", kind] = 1 / (1 - shares[nearest])
    return InterferenceTable(gpu, document["source"], pairs, alone, published=True)
