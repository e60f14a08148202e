"""Set aside impossible measurements: faster than the published peak of their GPU."""

from __future__ import annotations

from collections import Counter

from simulation.arrays import FloatArray
from simulation.performance.efficiency import COMPUTED_IN
from simulation.performance.kernel_tables import KernelRows
from simulation.performance.specs import GpuSpec

LIMIT = 0.02  # share of a table's rows above which the whole table is set aside


def plausible(rows: list[KernelRows], gpu: GpuSpec, set_aside: Counter[str]) -> list[KernelRows]:
    """Return ``rows`` without those that beat the peak FLOP/s of ``gpu``.

    Rows that are removed are counted in ``set_aside``. Bytes are not checked, because a kernel that
    is measured repeatedly finds its data in the cache.
    """
    kept = []
    for kernel_rows in rows:
        least = _least_seconds(kernel_rows, gpu)
        if least is None:
            kept.append(kernel_rows)
            continue
        bad = kernel_rows.seconds < least
        if bad.mean() > LIMIT:
            reason = (
                f"{kernel_rows.op} {kernel_rows.precision} on {gpu.name}: {bad.mean():.0%} of the "
                "rows are faster than the published peak, so the table is not used"
            )
            set_aside[reason] += kernel_rows.seconds.size
            continue
        if bad.any():
            set_aside[
                f"{kernel_rows.op} {kernel_rows.precision} on {gpu.name}: faster than the peak"
            ] += int(bad.sum())
        columns = {name: values[~bad] for name, values in kernel_rows.columns.items()}
        kept.append(
            KernelRows(kernel_rows.op, kernel_rows.precision, columns, kernel_rows.seconds[~bad])
        )
    return kept


def _least_seconds(rows: KernelRows, gpu: GpuSpec) -> FloatArray | None:
    """Return the time at the peak FLOP/s, or None if the operator or the peak is not known."""
    c = rows.columns
    if rows.op == "gemm":
        flops = 2.0 * c["m"] * c["n"] * c["k"]
        precision = rows.precision.removesuffix("_block")
    elif rows.op == "attention_prefill":
        keys = c["context"] + c["isl"] / 2.0
        flops = 4.0 * c["batch"] * c["isl"] * keys * c["heads"] * c["head_dim"]
        precision = "bf16"
    else:
        return None
    for name in COMPUTED_IN.get(precision, ("bf16",)):
        if gpu.peak_flops.get(name):
            return flops / gpu.peak_flops[name]
    return None
