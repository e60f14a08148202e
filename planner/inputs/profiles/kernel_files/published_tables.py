"""Give columns of kernel files their names here, where tools write them under others.

Vidur writes statistics as ``time_stats.OPERATOR.median`` and names GPU and model in the path of the
file alone. Newer files of aiconfigurator name the device as its driver does.
"""

from __future__ import annotations

import re

import polars as pl

from planner.errors import IngestError

_MEDIAN = re.compile(r"^time_stats\.(\w+)\.median$")
_NAMES = {"num_tensor_parallel_workers": "tp", "latency": "latency_ms", "size": "size_bytes"}
_DEVICES = {  # words of a driver's name to the system
    "A100": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "GB200": "gb200", "GB300": "gb300",
    "B200": "b200_sxm", "B300": "b300_sxm", "L40S": "l40s",
}  # fmt: skip
_NODES = {"A100-80GB": "a100_dgx", "H100-SXM": "h100_dgx"}  # nodes of Vidur by GPU


def with_known_names(data: pl.DataFrame, gpu: str, name: str) -> pl.DataFrame:
    """Return a table with the names that the readers know; ``gpu`` is the caller's, or empty."""
    medians = {c: match[1] for c in data.columns if (match := _MEDIAN.match(c))}
    renamed = {c: n for c, n in _NAMES.items() if c in data.columns and n not in data.columns}
    if medians == {f"time_stats.{c}.median": c for c in ("all_reduce",)}:
        data = data.rename({"time_stats.all_reduce.median": "median_ms"} | renamed)
        return _with_gpu(data, "node_sku", _NODES.get(gpu, gpu), name)
    if medians:
        data = data.rename({c: f"{operator}_ms" for c, operator in medians.items()} | renamed)
        data = _with_gpu(data, "gpu", gpu, name)
        return data if "model" in data.columns else data.with_columns(model=pl.lit("unnamed"))
    if "device" in data.columns and "system" not in data.columns:
        data = data.rename(renamed).with_columns(
            system=data["device"].map_elements(_system, return_dtype=pl.String)
        )
        if "backend" in data.columns and "kernel_source" in data.columns:
            data = data.with_columns(kernel_source=pl.col("backend"))
    return data


def _with_gpu(data: pl.DataFrame, column: str, gpu: str, name: str) -> pl.DataFrame:
    """Return the table with its GPU, which the file's path names and its columns do not."""
    if column in data.columns:
        return data
    if not gpu:
        raise IngestError(f"{name} names no GPU in its columns. Name the measured GPU.")
    return data.with_columns(pl.lit(gpu).alias(column))


def _system(device: str) -> str:
    """Return the system of a driver's name such as ``NVIDIA H100 80GB HBM3``."""
    words = re.split(r"[^A-Za-z0-9]+", device)
    return next((_DEVICES[word] for word in words if word in _DEVICES), device)
