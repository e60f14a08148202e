"""Build how models come onto shared GPUs, from the scenario and the GPU type's host link."""

from planner.inputs.scenario.schema.fleet import Sharing
from simulation.performance.specs import GpuSpec, Provenance
from simulation.sharing.replay import SharedHost

# PCI Express x16, GB/s one way: generation 3, 4 or 5. Other families: generation 4.
PCIE_GB_S = {
    "volta": 16.0, "turing": 16.0, "ampere": 32.0, "ada": 32.0, "hopper": 64.0, "blackwell": 64.0,
    "cdna3": 64.0, "cdna4": 64.0,
}  # fmt: skip
GRACE_GB_S = 450.0  # NVLink-C2C one way, of GH200, GB200 and GB300 (NVIDIA data sheets)
# Share of the link that a copy from pinned memory reaches: 55 of 64 GB/s on one H100 and one H200,
# at 16 MB to 2 GB. Assumed for other links. Copies from pageable memory reach 16 to 19 GB/s.
REACHED = 0.86
PROCESS_BYTES = 1e9  # CUDA context of each further engine, as in simulation.performance.memory


def host_of(
    sharing: Sharing, gpu: GpuSpec, gpus: int, facts: list[tuple[str, Provenance]]
) -> SharedHost:
    """Return the host of ``gpus`` GPUs that serve as one replica; they load in parallel."""
    link, source = PCIE_GB_S.get(gpu.family, 32.0), "PCI Express x16"
    if gpu.name.startswith("G") and gpu.name[1:6] in ("H200", "B200", "B300"):
        link, source = GRACE_GB_S, "NVLink-C2C"
    rate = REACHED * link if sharing.host_gb_s is None else sharing.host_gb_s
    words = f"{link:g} GB/s one way ({source}), of which copies reach {REACHED:.0%} on H100"
    origin = Provenance("assumed", words if sharing.host_gb_s is None else "fleet.sharing")
    facts.append((f"Loads from host to {gpu.name}", origin))
    return SharedHost(
        host_bytes=gpus * sharing.host_memory_gb * 1e9,
        host_bytes_s=gpus * rate * 1e9,
        disk_bytes_s=gpus * sharing.disk_gb_s * 1e9,
        switch_s=sharing.switch_s,
        process_bytes=gpus * PROCESS_BYTES,
        overlap=sharing.overlap,
    )
