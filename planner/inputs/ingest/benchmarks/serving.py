"""Read results of served deployments: vLLM's serving benchmark and GuideLLM, one row per run.

vLLM: ``benchmarks/benchmark_serving.py`` and later ``vllm bench serve`` (with --save-result) write
one object per run. Times are in ms under ``median_ttft_ms`` and ``median_tpot_ms``, lengths are
totals.

GuideLLM: a report with ``benchmarks``, each with ``metrics`` by request status. The strategy's
``streams`` is under ``args`` up to 0.3 and under ``config`` since then. Failed and unfinished
requests are not in the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import IngestError
from simulation.performance.rows import BenchmarkRows, benchmark_rows

Document = Mapping[str, Any]
NAMES = {  # keys that users put into vLLM's --metadata KEY=VALUE
    "gpu": ("gpu", "gpu_type", "gpu_name", "hardware", "accelerator", "device"),
    "tp": ("tp", "tensor_parallel", "tensor_parallel_size", "tp_size"),
    "precision": ("precision", "dtype", "quantization", "weight_precision"),
}


def vllm(documents: Sequence[Document], name: str) -> tuple[BenchmarkRows, list[str]]:
    """Return rows of ``benchmark_serving`` results, in the documents' order.

    A row is of one replica. Results name the replicas behind a gateway, if there are several.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for number, run in enumerate(documents, 1):
        where = f"{name}, result {number}" if len(documents) > 1 else name
        done = _number(run, "completed", where)
        tpot = _first(run, where, "median_tpot_ms", "mean_tpot_ms", "median_itl_ms", "mean_itl_ms")
        if math.isnan(done) or math.isnan(tpot):
            raise IngestError(
                f"{where} has no completed or median_tpot_ms; give the JSON that vllm bench serve "
                "writes with --save-result."
            )
        if done < 1:
            raise IngestError(f"{where}: no request was completed; leave this result out.")
        osl = _number(run, "total_output_tokens", where) / done
        duration = _number(run, "duration", where)
        rate = _number(run, "request_throughput", where)
        if math.isnan(rate) and duration > 0:  # early forms give the duration alone
            rate = done / duration
        ttft = _first(run, where, "median_ttft_ms", "mean_ttft_ms")
        most_in_flight = _number(run, "max_concurrency", where)
        # Without a concurrency limit, Little's law gives the mean number in flight.
        mean = (
            _first(run, where, "mean_ttft_ms", "median_ttft_ms"),
            _first(run, where, "mean_tpot_ms", "median_tpot_ms", "mean_itl_ms"),
        )
        e2e = _first(run, where, "mean_e2e_latency_ms", "mean_e2el_ms")
        if math.isnan(e2e):
            e2e = mean[0] + mean[1] * max(osl - 1, 0)
        replicas = max(
            1.0, _first(run, where, "decode_replicas", "replicas", "num_replicas") or 1.0
        )
        replicas = 1.0 if math.isnan(replicas) else replicas
        if replicas > 1:
            notes.append(f"Result {number}: divided by its {replicas:g} replicas.")
        failed = _number(run, "failed", where)
        if failed > 0.05 * (failed + done):
            notes.append(f"Result {number}: {failed / (failed + done):.0%} of its requests failed.")
        in_flight = rate * e2e / 1e3
        rows.append(
            {
                "model": str(run.get("model_id") or run.get("model") or ""),
                "isl": _number(run, "total_input_tokens", where) / done,
                "osl": osl,
                "concurrency": (
                    in_flight if math.isnan(most_in_flight) else min(most_in_flight, max(done, 1))
                )
                / replicas,
                "ttft_s": ttft / 1e3,
                "tbt_s": tpot / 1e3,
                "e2e_s": _first(
                    run, where, "median_e2el_ms", "median_e2e_latency_ms", "mean_e2el_ms"
                )
                / 1e3,
                "throughput": _number(run, "output_throughput", where) / replicas,
                **_labels(run, where),
            }
        )
    return _rows(rows), notes


def guidellm(documents: Sequence[Document], name: str) -> tuple[BenchmarkRows, list[str]]:
    """Return rows of GuideLLM reports, one per benchmark of each."""
    rows, notes = [], []
    for report in documents:
        benchmarks = report.get("benchmarks")
        if not isinstance(benchmarks, list) or not benchmarks:
            raise IngestError(f"{name} is a GuideLLM report without benchmarks; run it again.")
        for number, run in enumerate(benchmarks, 1):
            where = f"{name}, benchmark {number}"
            metrics = run.get("metrics") if isinstance(run, dict) else None
            if not isinstance(metrics, dict):
                raise IngestError(
                    f"{where} has no metrics; give the benchmarks.json that guidellm wrote (its "
                    "form up to 0.1 has none)."
                )
            tbt = _metric(metrics, "inter_token_latency_ms", "median", where)
            if math.isnan(tbt) or tbt <= 0:
                notes.append(f"Benchmark {number} left out: none of its requests was completed.")
                continue
            streams = _find(run, ("config", "strategy", "streams"), ("args", "strategy", "streams"))
            in_flight = _metric(metrics, "request_concurrency", "mean", where)
            model = _find(
                run, ("config", "backend", "model"), ("worker", "backend_model")
            ) or _find(report, ("args", "model"), ("args", "backend_kwargs", "model"))
            rows.append(
                {
                    "model": str(model or ""),
                    "isl": _metric(metrics, "prompt_token_count", "mean", where),
                    "osl": _metric(metrics, "output_token_count", "mean", where),
                    "concurrency": float(streams)
                    if isinstance(streams, int | float)
                    else in_flight,
                    "ttft_s": _metric(metrics, "time_to_first_token_ms", "median", where) / 1e3,
                    "tbt_s": tbt / 1e3,
                    "e2e_s": _metric(metrics, "request_latency", "median", where),
                    "throughput": _metric(metrics, "output_tokens_per_second", "mean", where),
                    **_labels(_extras(run, report), where),
                }
            )
    if not rows:
        raise IngestError(f"{name}: no benchmark has a completed request; run it again.")
    return _rows(rows), notes


def _rows(rows: Sequence[Mapping[str, Any]]) -> BenchmarkRows:
    texts = {key: [str(row.get(key, "")) for row in rows] for key in ("model", "gpu", "precision")}
    keys = [key for key in rows[0] if key not in texts]
    return benchmark_rows(texts, {key: [row.get(key, math.nan) for row in rows] for key in keys})


def _labels(run: Document, where: str) -> dict[str, Any]:
    """Return GPU, precision and TP, which users may add in either tool."""
    labels: dict[str, Any] = {"gpu": "", "precision": "", "tp": math.nan}
    for label, keys in NAMES.items():
        for key in keys:
            if run.get(key) not in (None, ""):
                labels[label] = _number(run, key, where) if label == "tp" else str(run[key])
                break
    return labels


def _extras(run: Document, report: Document) -> Document:
    places = [_find(run, ("extras",)), _find(run, ("config", "extras"))]
    places.append(_find(report, ("args", "extras")))
    return {k: v for place in places if isinstance(place, dict) for k, v in place.items()}


def _find(document: Any, *paths: tuple[str, ...]) -> Any:
    """Return the value at the first of ``paths`` that exists."""
    for path in paths:
        value = document
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _metric(metrics: Document, key: str, statistic: str, where: str) -> float:
    """Return a statistic of the completed requests.

    Before GuideLLM 0.2 their status was ``completed``.
    """
    by_status = metrics.get(key)
    summary = _find(by_status, ("successful",), ("completed",))
    if not isinstance(summary, dict):
        return math.nan
    return _number(summary, statistic, f"{where}, {key}")


def _first(run: Document, where: str, *keys: str) -> float:
    return next((v for key in keys if not math.isnan(v := _number(run, key, where))), math.nan)


def _number(document: Document, key: str, where: str) -> float:
    """Return a non-negative number; NaN if it is absent or null."""
    value = document.get(key)
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(value, bool) or not (number >= 0 and math.isfinite(number)):
        raise IngestError(
            f"{where}: {key} is {value!r:.60}; a number from 0 is expected, correct or remove it."
        )
    return number
