"""List the metrics of serving engines by quantity: present names first, former names after.

The names are from the engines' own sources, given in ``source`` (repository:path@commit). Counters
of requests and tokens are those that move when a request ends. The tokens of a bin are then those
of its requests. A histogram ``x`` also has ``x_sum`` and ``x_count``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """The type of a metric, and how it is combined over replicas."""

    COUNTER = "counter"
    GAUGE_SUM = "sum of gauges"  # over replicas
    GAUGE_MEAN = "mean of gauges"
    HISTOGRAM = "histogram"
    MEAN = "mean of a histogram"  # sum / count: exact, while buckets are coarse


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity and the names under which an engine reports it."""

    what: str  # a column of samples, from AMOUNTS, GAUGES or COUNTED
    kind: Kind
    names: tuple[str, ...]

    def present(self, there: frozenset[str]) -> Metric:
        """Return the metric with only those names that are in ``there``."""
        suffix = {Kind.HISTOGRAM: "_bucket", Kind.MEAN: "_sum"}.get(self.kind, "")
        return Metric(self.what, self.kind, tuple(n for n in self.names if n + suffix in there))


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine, or a front end that forwards to engines, with its metrics.

    ``front`` marks a front end. Its engines may report the same requests, so both would count them,
    and its targets are not replicas. ``signs`` are prefixes of metric names that identify it.
    """

    name: str
    title: str
    model_label: str  # "": the engine has none
    metrics: tuple[Metric, ...]
    signs: tuple[str, ...]
    source: str
    front: bool = False
    leave_out: tuple[tuple[str, str], ...] = ()  # label and value of series that are not counted


def _metrics(
    requests: tuple[str, ...],
    tokens: tuple[tuple[str, ...], tuple[str, ...]],
    gauges: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    histograms: tuple[tuple[str, ...], ...],
) -> tuple[Metric, ...]:
    """Return the metrics that have names, in the order of the columns.

    Columns: requests; input and output tokens; waiting, running, KV use. Then the histograms of
    input length, output length, TTFT, TBT and E2E, and the mean of TBT.
    """
    counted = ("input_tokens", "output_tokens", "ttft_s", "tbt_s", "e2e_s")
    return tuple(
        metric
        for metric in (
            Metric("requests", Kind.COUNTER, requests),
            Metric("input_tokens", Kind.COUNTER, tokens[0]),
            Metric("output_tokens", Kind.COUNTER, tokens[1]),
            Metric("waiting", Kind.GAUGE_SUM, gauges[0]),
            Metric("running", Kind.GAUGE_SUM, gauges[1]),
            Metric("kv_use", Kind.GAUGE_MEAN, gauges[2]),
            *(
                Metric(what, Kind.HISTOGRAM, names)
                for what, names in zip(counted, histograms, strict=True)
            ),
            Metric("tbt_mean_s", Kind.MEAN, histograms[counted.index("tbt_s")]),
        )
        if metric.names
    )


def _prefix(prefix: str, *names: str) -> tuple[str, ...]:
    """Return names with the prefix, and also as Ray writes them, without a colon."""
    full = tuple(f"{prefix}{name}" for name in names)
    return (*full, *(n.replace(":", "_") for n in full if ":" in n))


_V, _S, _T, _D, _N = "vllm:", "sglang:", "trtllm_", "dynamo_frontend_", "nv_llm_http_service_"
_F = "llm_d_epp_flow_control"
_L, _O, _M = "llm_d_epp_request_", "inference_objective_", "inference_model_"

ENGINES = (
    Engine(
        "vllm", "vLLM", "model_name",
        _metrics(
            _prefix(_V, "request_success_total"),
            (
                _prefix(_V, "request_prompt_tokens_sum"),
                _prefix(_V, "request_generation_tokens_sum"),
            ),
            (
                _prefix(_V, "num_requests_waiting"),
                _prefix(_V, "num_requests_running"),
                _prefix(_V, "kv_cache_usage_perc", "gpu_cache_usage_perc"),
            ),
            (
                _prefix(_V, "request_prompt_tokens"),
                _prefix(_V, "request_generation_tokens"),
                _prefix(_V, "time_to_first_token_seconds"),
                _prefix(_V, "inter_token_latency_seconds", "time_per_output_token_seconds"),
                _prefix(_V, "e2e_request_latency_seconds"),
            ),
        ),
        (_V, "vllm_"),
        "vllm-project/vllm:vllm/v1/metrics/loggers.py",
    ),
    Engine(
        "sglang", "SGLang", "model_name",
        _metrics(
            _prefix(_S, "num_requests_total"),
            (_prefix(_S, "prompt_tokens_total"), _prefix(_S, "generation_tokens_total")),
            (
                _prefix(_S, "num_queue_reqs"),
                _prefix(_S, "num_running_reqs"),
                _prefix(_S, "token_usage"),
            ),
            (
                _prefix(_S, "prompt_tokens_histogram"),
                _prefix(_S, "generation_tokens_histogram"),
                _prefix(_S, "time_to_first_token_seconds"),
                _prefix(_S, "inter_token_latency_seconds", "time_per_output_token_seconds"),
                _prefix(_S, "e2e_request_latency_seconds"),
            ),
        ),
        (_S, "sglang_"),
        "sgl-project/sglang:python/sglang/srt/metrics/collector.py",
        leave_out=(("engine_type", "prefill"),),  # the decode instance counts the same request
    ),
    Engine(
        "trtllm", "TensorRT-LLM", "model_name",
        _metrics(
            (f"{_T}request_success_total", "request_success_total"),
            ((f"{_T}prompt_tokens_total",), (f"{_T}generation_tokens_total",)),
            (
                (f"{_T}num_requests_waiting",),
                (f"{_T}num_requests_running",),
                (f"{_T}kv_cache_utilization",),
            ),
            (
                (),
                (),
                (f"{_T}time_to_first_token_seconds", "time_to_first_token_seconds"),
                (f"{_T}time_per_output_token_seconds", "time_per_output_token_seconds"),
                (f"{_T}e2e_request_latency_seconds", "e2e_request_latency_seconds"),
            ),
        ),
        (_T,),
        "NVIDIA/TensorRT-LLM:tensorrt_llm/metrics/collector.py@050f80def8df",
    ),
    Engine(
        "tgi", "TGI", "",
        _metrics(
            ("tgi_request_success",),
            (("tgi_request_input_length_sum",), ("tgi_request_generated_tokens_sum",)),
            (("tgi_queue_size",), ("tgi_batch_current_size",), ()),
            (
                ("tgi_request_input_length",),
                ("tgi_request_generated_tokens",),
                (),
                ("tgi_request_mean_time_per_token_duration",),
                ("tgi_request_duration",),
            ),
        ),
        ("tgi_",),
        "huggingface/text-generation-inference:router/src/server.rs@db931fcf42da",
    ),
    Engine(
        "dynamo", "Dynamo", "model",
        _metrics(
            (f"{_D}requests_total", f"{_N}requests_total"),
            (
                (f"{_D}input_sequence_tokens_sum", f"{_N}input_sequence_tokens_sum"),
                (f"{_D}output_sequence_tokens_sum", f"{_N}output_sequence_tokens_sum"),
            ),
            (
                (f"{_D}queued_requests",),
                (f"{_D}active_requests", f"{_D}inflight_requests", f"{_N}inflight_requests"),
                (),
            ),
            tuple(
                (f"{_D}{name}", f"{_N}{name}")
                for name in (
                    "input_sequence_tokens",
                    "output_sequence_tokens",
                    "time_to_first_token_seconds",
                    "inter_token_latency_seconds",
                    "request_duration_seconds",
                )
            ),
        ),
        (_D, _N),
        "ai-dynamo/dynamo:lib/llm/src/http/service/metrics.rs@2a6da14c8361",
        front=True,
    ),
    Engine(
        "llm-d", "llm-d", "model_name",
        _metrics(
            (f"{_L}total", f"{_O}request_total", f"{_M}request_total"),
            (
                (f"{_L}input_tokens_sum", f"{_O}input_tokens_sum", f"{_M}input_tokens_sum"),
                (f"{_L}output_tokens_sum", f"{_O}output_tokens_sum", f"{_M}output_tokens_sum"),
            ),
            (
                (f"{_F}_queue_size", "inference_extension_flow_control_queue_size"),
                (f"{_L}running", f"{_O}running_requests", f"{_M}running_requests"),
                (),
            ),
            (
                (f"{_L}input_tokens", f"{_O}input_tokens", f"{_M}input_tokens"),
                (f"{_L}output_tokens", f"{_O}output_tokens", f"{_M}output_tokens"),
                (f"{_L}ttft_seconds",),
                (f"{_L}streaming_itl_seconds", f"{_L}streaming_tpot_seconds"),
                (
                    f"{_L}duration_seconds",
                    f"{_O}request_duration_seconds",
                    f"{_M}request_duration_seconds",
                ),
            ),
        ),
        (_L, _O, _M),
        "llm-d/llm-d-router:pkg/epp/metrics/llm_d_router_metrics.go@ebab687927f5",
        front=True,
    ),
)  # fmt: skip
# Power of all GPUs that the exporter sees, whatever runs on them.
POWER = Metric("power_w", Kind.GAUGE_SUM, ("DCGM_FI_DEV_POWER_USAGE",))


def engines_present(there: frozenset[str], engine: str = "auto") -> tuple[Engine, ...]:
    """Return the engines to read, each with the metrics that the server has.

    With ``auto`` these are all engines that count requests, else the first front end that does.
    """
    engines = []
    for candidate in ENGINES:
        metrics = tuple(m for metric in candidate.metrics if (m := metric.present(there)).names)
        counts = any(metric.what == "requests" for metric in metrics)
        known = engine == candidate.name or any(
            name.startswith(candidate.signs) for metric in metrics for name in metric.names
        )
        if counts and known and engine in ("auto", candidate.name):
            engines.append(replace(candidate, metrics=metrics))
    behind = [candidate for candidate in engines if not candidate.front]
    return tuple(behind or engines[:1])
