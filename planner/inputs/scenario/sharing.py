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
REACHED_SHARE = 0.86
PROCESS_BYTES = 1e9  # CUDA context of each further engine, as in simulation.performance.memory


def host_of(
    sharing: Sharing, gpu: GpuSpec, gpus: int, facts: list[tuple[str, Provenance]]
) -> SharedHost:
    """Return memory and load rates of the host of a replica with ``gpus`` GPUs.

    The GPUs load in parallel, so each rate is that of one GPU times ``gpus``. Append the source of
    the host link's rate to ``facts``.
    """
    link_gb_s, link_name = PCIE_GB_S.get(gpu.family, 32.0), "PCI Express x16"
    if gpu.name in ("GH200", "GB200", "GB300"):
        link_gb_s, link_name = GRACE_GB_S, "NVLink-C2C"
    if sharing.host_gb_s is None:
        gpu_gb_s = REACHED_SHARE * link_gb_s
        source = (
            f"{link_gb_s:g} GB/s one way ({link_name}), of which copies reach "
            f"{REACHED_SHARE:.0%} on H100"
        )
    else:
        gpu_gb_s, source = sharing.host_gb_s, "fleet.sharing"
    facts.append((f"Loads from host to {gpu.name}", Provenance("assumed", source)))
    return SharedHost(
        host_bytes=gpus * sharing.host_memory_gb * 1e9,
        host_bytes_s=gpus * gpu_gb_s * 1e9,
        disk_bytes_s=gpus * sharing.disk_gb_s * 1e9,
        switch_s=sharing.switch_s,
        process_bytes=gpus * PROCESS_BYTES,
        overlap=sharing.overlap,
    )
