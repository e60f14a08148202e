"""Fit the factors of ``simulation.performance.efficiency`` to measured kernels.

    .venv/bin/python -m tools.catalogue.fit_efficiency

It writes planner/inputs/catalogue/efficiency.yaml.

Rows: ``profiles/aic_*`` and, for elementwise operators, ``profiles/vidur_mlp_ops`` and
``llmservingsim_v1_layers``. There is one entry per kind of operator, GPU family and precision. Each
is fitted by least squares of ln(predicted / measured) with a soft L1 loss. Expert layers use both
measured routings, each with the number of experts that it reaches (``routing``). ``spread`` is the
standard deviation of the logarithm over all rows of the entry. ``across`` is its root mean square
with the factors of another family.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from planner.inputs.catalogue import hardware
from planner.inputs.profiles.kernel_files import read_kernels
from planner.inputs.profiles.kernel_files.aic import experts
from planner.inputs.profiles.kernel_files.reader import plausible, read_frame
from simulation.performance.curves import overlapped_seconds
from simulation.performance.efficiency import Efficiencies, Efficiency
from simulation.performance.kernel_tables import KernelRows, fastest, kernels
from simulation.performance.profile import check
from simulation.performance.specs import BYTES, GpuSpec
from tools.catalogue import operator_checks
from tools.catalogue.routing import EVEN, SKEWED, expert_load

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data/profiles"
OUT = ROOT / "planner/inputs/catalogue/efficiency.yaml"
AIC = "aiconfigurator systems/data @ 095f58a (Apache-2.0), vLLM kernels"
VIDUR = "vidur data/profiling/compute @ 7d47513 (MIT)"
SERVINGSIM = "LLMServingSim profiler/perf @ 5daddb2 (MIT)"
PCIE_BYTES_S = 64e9  # 16 lanes of PCIe 5; a faster link is not shared
ROWS = 8000  # per entry, drawn at random; more rows change no factor by a percent
Array = np.ndarray
ARRAYS = ("flops_s", "bytes_s", "units", "elements", "seconds")  # of a sample


@dataclass(frozen=True)
class Sample:
    """Measured calls with the inputs of the formula; arrays have shape ``[rows]``."""

    kind: str
    family: str
    precision: str
    source: str
    gpu: str
    flops_s: Array  # seconds at the peak
    bytes_s: Array
    units: Array
    elements: Array
    seconds: Array
    shared: bool = False  # GPUs share the link: units are the number of GPUs minus one

    def take(self, rows: Array) -> Sample:
        """Return the sample with only these rows."""
        arrays = {name: getattr(self, name)[rows] for name in ARRAYS}
        return replace(self, **arrays)


def quantities(
    rows: KernelRows, gpu: GpuSpec, routing: str = SKEWED
) -> tuple[Array, Array, Array, Array, Array]:
    """Return FLOPs, bytes, units, elements, and a mask of the rows that serving a model needs.

    All have shape ``[rows]`` and count as in ``work``: units are what adds time per piece, such as
    k of a GEMM, sequences times KV heads, or experts. For experts they count those that the
    measurement's ``routing`` reached.
    """
    c = rows.columns
    ones, size = np.ones_like(rows.seconds), BYTES[rows.precision.removesuffix("_block")]
    if rows.op == "gemm":
        m, n, k = c["m"], c["n"], c["k"]
        return 2 * m * n * k, n * k * size + 2 * m * (n + k), k, 0 * ones, (n >= 256) & (k >= 256)
    if rows.op == "attention_decode":
        b, keys, h, kv, dim = (c[x] for x in ("batch", "context", "heads", "kv_heads", "head_dim"))
        moved = b * keys * 2 * kv * dim * size + 4 * b * h * dim
        return 4 * b * keys * h * dim, moved, b * kv, 0 * ones, keys >= 16
    if rows.op == "attention_prefill":
        b, n, h, kv, dim = (c[x] for x in ("batch", "isl", "heads", "kv_heads", "head_dim"))
        moved = b * n * (2 * kv * dim * size + 4 * h * dim)
        clean = (n >= 16) & (c["context"] == 0)
        return 2 * b * n * n * h * dim, moved, 0 * ones, 0 * ones, clean
    if rows.op == "experts":
        names = ("tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep")
        t, h, wide, e, top, tp, ep = (c[x] for x in names)
        reached, share = expert_load(routing, t, e, top, ep)
        pairs, wide = t * top * share, wide / tp
        moved = reached * 3 * h * wide * size + 4 * pairs * h
        # Each GPU holds all tokens here, as without a dispatch; see ``features``.
        return 6 * pairs * h * wide, moved, reached, t * top * (2 * h + 3 * wide), ones > 0
    read, written = c["k"], c["n"]
    return 0 * ones, 2 * c["m"] * (read + written), 0 * ones, 0 * ones, ones > 0


def samples() -> list[Sample]:
    """Return all measured kernels, one sample per kind of operator, GPU family and precision."""
    specs, shapes = hardware.gpus(), {name: hardware.shape(name) for name in hardware.models()}
    files = {
        "aic_gemm.parquet": AIC, "aic_context_attention.parquet": AIC,
        "aic_generation_attention.parquet": AIC, "aic_moe.parquet": AIC,
        "aic_nccl.parquet": AIC, "aic_custom_allreduce.parquet": AIC,
        "vidur_mlp_ops.parquet": VIDUR, "llmservingsim_v1_layers.csv.gz": SERVINGSIM,
    }  # fmt: skip
    parts: list[Sample] = []
    collectives: dict[str, list[KernelRows]] = {}
    for file, source in files.items():
        for gpu, tables in read_kernels(DATA / file, shapes=shapes, gpus=specs).by_gpu.items():
            for rows in tables:
                if rows.op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
                    if rows.precision == "bf16":
                        collectives.setdefault(gpu, []).append(rows)
                elif source == AIC or rows.op == "elementwise":
                    parts.append(_sample(rows, specs[gpu], source))
    for gpu, tables in _evenly_routed(specs).items():
        parts += [_sample(rows, specs[gpu], AIC, EVEN) for rows in tables]
    for gpu, tables in collectives.items():
        parts += _collectives(tables, specs[gpu])
    by_entry: dict[tuple[str, str, str], list[Sample]] = {}
    for part in parts:
        by_entry.setdefault((part.kind, part.family, part.precision), []).append(part)
    return [_join_samples(parts_of_entry) for parts_of_entry in by_entry.values()]


def _evenly_routed(specs: Mapping[str, GpuSpec]) -> dict[str, list[KernelRows]]:
    """Return the expert layers with evenly routed tokens, which no profile reads, by GPU type."""
    frame = read_frame(DATA / "aic_moe.parquet")
    tables: dict[str, list[KernelRows]] = {}
    for gpu, rows in experts(frame, {}, EVEN):
        tables.setdefault(gpu, []).append(rows)
    return {gpu: plausible(rows, specs[gpu], Counter()) for gpu, rows in tables.items()}


def _sample(rows: KernelRows, gpu: GpuSpec, source: str, routing: str = SKEWED) -> Sample:
    """Return measured kernels of one GPU type with their times at the published peaks."""
    flops, moved, units, elements, use = quantities(rows, gpu, routing)
    precision = rows.precision.removesuffix("_block")
    computed = "bf16" if rows.op.startswith("attention") else precision
    peak = gpu.peak_flops.get(computed) or gpu.peak_flops["bf16"]
    assert gpu.bandwidth_bytes_s is not None
    sample = Sample(
        rows.op, gpu.family, precision, source, gpu.name,
        flops / peak, moved / gpu.bandwidth_bytes_s, units, elements, rows.seconds,
    )  # fmt: skip
    return sample.take(np.flatnonzero(use))


def _collectives(tables: list[KernelRows], gpu: GpuSpec) -> list[Sample]:
    """Return the collectives of one GPU type, from the faster of NCCL and the custom kernel."""
    table = kernels(gpu.name, AIC, tables).collectives
    assert gpu.link_bytes_s is not None
    result = []
    for (kind, gpus), lines in table.items():
        sizes = np.unique(np.concatenate([line.sizes for line in lines]))
        sizes = sizes[sizes >= 1024]
        read = fastest(lines, sizes)
        assert read is not None
        # Bytes over the link of a GPU per byte of the message, for a ring.
        traffic = (2.0 if kind == "all_reduce" else 1.0) * (gpus - 1) / gpus
        none = np.zeros_like(sizes)
        result.append(
            Sample(
                kind=kind,
                family=gpu.family,
                precision="bf16",
                source=f"{AIC} and NCCL",
                gpu=gpu.name,
                flops_s=none,
                bytes_s=sizes * traffic / gpu.link_bytes_s,
                units=np.full_like(sizes, gpus - 1),
                elements=none,
                seconds=read[0],
                shared=gpu.link_bytes_s <= PCIE_BYTES_S,
            )
        )
    return result


def _join_samples(parts: list[Sample]) -> Sample:
    """Return the samples of one entry as one; they may be of several sources and GPU types."""
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    return replace(
        parts[0],
        **arrays,
        source="; ".join(dict.fromkeys(part.source for part in parts)),
        gpu=", ".join(dict.fromkeys(part.gpu for part in parts)),
        shared=any(part.shared for part in parts),
    )


# Latent attention in decode does many more operations per byte than any attention measured here.
# Its authors' kernel reaches 660 TFLOP/s and 3,000 GB/s on an H800 (989 TFLOP/s, 3,350 GB/s); the
# floor is that of other attention on the same family. The spread is assumed.
LATENT = Efficiency(
    "latent_decode", "hopper", "bf16", 9.4e-6, 0.0, 0.0, 0.667, 0.896, 2.0, 0.3, 0,
    "deepseek-ai/FlashMLA README.md (published), floor as attention_decode",
)  # fmt: skip

# Bounds and start of the six factors: floor, seconds per unit and per element, shares of the peak
# arithmetic and bandwidth, and sharpness minus 1.
LOW = np.log([1e-7, 1e-14, 1e-18, 0.02, 0.05, 0.1])
HIGH = np.log([1e-3, 1e-5, 1e-11, 1.0, 1.2, 20.0])
START = np.log([4e-6, 1e-9, 1e-15, 0.6, 0.7, 1.0])
SHARING = (0.0, 1.0, 3.0)  # lower bound, start, upper bound


def predict_seconds(logs: Array, sample: Sample) -> Array:
    """Return the seconds by the formula, for the logarithms of its six factors.

    ``logs`` may have a seventh value: the exponent by which GPUs that share a link slow each other.
    """
    floor, unit, element, compute, bandwidth, sharp = np.exp(logs[:6])
    if sample.shared and logs.size > len(START):
        bandwidth = bandwidth * (2.0 / (sample.units + 1.0)) ** logs[6]
    busy = overlapped_seconds(sample.flops_s / compute, sample.bytes_s / bandwidth, 1 + sharp)
    seconds: Array = floor + unit * sample.units + element * sample.elements + busy
    return seconds


def errors(logs: Array, sample: Sample) -> Array:
    """Return ln(predicted / measured) of each row."""
    error: Array = np.log(predict_seconds(logs, sample) / sample.seconds)
    return error


def fit(sample: Sample) -> Array:
    """Return the logarithms of the six factors, and the sharing of a shared link."""
    draw = np.random.default_rng(0)
    if sample.seconds.size > ROWS:
        sample = sample.take(draw.choice(sample.seconds.size, ROWS, replace=False))
    high = HIGH.copy()
    if sample.kind == "elementwise":  # operands may fit in the cache of the chip
        high[4] = np.log(4.0)
    low, start = LOW, START
    if sample.shared:
        low, start, high = (
            np.append(a, b) for a, b in zip((LOW, START, high), SHARING, strict=True)
        )
    optimum = least_squares(
        errors, start, bounds=(low, high), args=(sample,), loss="soft_l1", f_scale=0.1
    )
    return np.asarray(optimum.x)


def entry(sample: Sample, logs: Array) -> Efficiency:
    """Return the entry of a fit; factors of what the sample does not have are neutral."""
    floor, unit, element, compute, bandwidth, sharp = (
        float(f"{value:.4g}") for value in np.exp(logs[:6])
    )
    if not sample.flops_s.any():
        compute, sharp = 1.0, 1.0
    unit, element = unit * sample.units.any(), element * sample.elements.any()
    return Efficiency(
        sample.kind, sample.family, sample.precision, floor, unit, element, compute, bandwidth,
        1 + sharp, float(f"{errors(logs, sample).std():.3g}"), int(sample.seconds.size),
        f"{sample.source}: {sample.gpu}", float(f"{logs[6]:.4g}") if sample.shared else 0.0,
    )  # fmt: skip


def across(fits: Mapping[tuple[str, str, str], tuple[Sample, Array]]) -> dict[str, float]:
    """Return, by kind, the error of 16-bit kernels with the factors of another GPU family.

    It is the root mean square of ln(predicted / measured) of the median pair of families.
    """
    result: dict[str, float] = {}
    for kind in sorted({key[0] for key in fits}):
        families = [fits[key] for key in fits if (key[0], key[2]) == (kind, "bf16")]
        rms_errors = [
            float(np.sqrt(np.mean(errors(logs, sample) ** 2)))
            for i, (sample, _) in enumerate(families)
            for j, (_, logs) in enumerate(families)
            if i != j
        ]
        if rms_errors:
            result[kind] = float(f"{np.median(rms_errors):.3g}")
    return result


def main() -> int:
    """Fit all entries, print their errors, and write the file."""
    fits: dict[tuple[str, str, str], tuple[Sample, Array]] = {}
    for sample in samples():
        fits[(sample.kind, sample.family, sample.precision)] = (sample, fit(sample))
    lines = [
        "# Written by tools/catalogue/fit_efficiency.py;",
        "# formula: simulation/performance/efficiency.py.",
        "# compute and bandwidth are shares of the published peaks (above 1 only where the cache",
        "# helps), spread is the standard deviation of ln(predicted / measured).",
        "kind: modelled",
        "across:  # root mean square of ln(predicted / measured) on another family, median pair",
    ]
    lines += [f"  {kind}: {value}" for kind, value in across(fits).items()]
    lines.append("entries:")
    print("kind, family, precision, rows, median and p95 of the error, bias", file=sys.stderr)
    entries = [LATENT]
    for key in sorted(fits):
        sample, logs = fits[key]
        e, size = entry(sample, logs), np.abs(np.expm1(errors(logs, sample)))
        entries.append(e)
        print(
            f"{e.kind:18} {e.family:10} {e.precision:5} {e.rows:6} {np.median(size):7.3f} "
            f"{np.quantile(size, 0.95):6.2f} {np.median(errors(logs, sample)):+7.3f}  floor "
            f"{e.floor_s * 1e6:.1f} us, compute {e.compute:.2f}, bandwidth {e.bandwidth:.2f}",
            file=sys.stderr,
        )
    lines += map(_entry_text, entries)
    lines.append("checks:")
    lines += _check_texts(Efficiencies(tuple(entries), across(fits)))
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _entry_text(e: Efficiency) -> str:
    """Return the YAML of an entry."""
    return (
        f"  - {{kind: {e.kind}, family: {e.family}, precision: {e.precision}, "
        f"floor_s: {e.floor_s:g}, per_unit_s: {e.per_unit_s:g},\n"
        f"     per_element_s: {e.per_element_s:g}, compute: {e.compute:g}, bandwidth: "
        f"{e.bandwidth:g}, sharpness: {e.sharpness:.4g}, spread: {e.spread:g},\n"
        f"     rows: {e.rows}, source: '{e.source}'"
        + (f",\n     sharing: {e.sharing:g}}}" if e.sharing else "}")
    )


def _check_texts(factors: Efficiencies) -> Iterator[str]:
    """Yield and print, as YAML, errors of rooflines with ``factors`` on served models."""
    rows = operator_checks.tpot_rows(DATA.parent, factors)
    for model in sorted(rows["model_path"].unique()):
        part = rows.filter(rows["model_path"] == model)
        tpot = check(
            "TPOT",
            f"{model.split('/')[-1]} served on 1 to 8 H100, concurrency 8 to 128, not fitted to "
            f"(aiconfigurator systems/silicon_sample.csv @ 095f58a)",
            part["silicon_tpot_ms"].to_numpy(),
            part["roofline_ms"].to_numpy(),
        )
        print(f"{model}: TPOT median {tpot.median:.3f}, bias {tpot.bias:+.3f}", file=sys.stderr)
        yield (
            f"  - {{quantity: {tpot.quantity}, rows: {tpot.rows}, mape: {tpot.mape:.4f}, "
            f"median: {tpot.median:.4f}, p95: {tpot.p95:.4f}, bias: {tpot.bias:.4f},\n"
            f"     against: '{tpot.against}'}}"
        )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
