"""Declare the inputs of estimates once, for the command line, the REST API and the page.

The service checks the values. It also knows other names of them, such as fp16 for bf16.
"""

from planner.domain.options import Option
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.defaults import MOST_DRAFTED, MOST_HITS, MOST_RECV, MOST_TOKENS
from simulation.performance.specs import BYTES, WIDTHS

MAX_TOKENS, MAX_USERS, MAX_RPS = 1e7, 1e6, 1e6
SIDES = ("", "prefill_", "decode_")  # of the whole deployment, or of its workers of a role
WIDTH_LABELS = {
    "tp": "Tensor parallel",
    "pp": "Pipeline stages",
    "attention_dp": "Attention data parallel",
    "moe_tp": "Experts, tensor parallel",
    "moe_ep": "Experts, expert parallel",
}


def _text(name: str, label: str, help: str, longest: int, *, required: bool = False) -> Option:
    """Return the option for a text of at most ``longest`` characters."""
    return Option(name, label, help, "string", False, required, None, longest=longest)


def _choice(name: str, label: str, help: str, choices: tuple[str, ...]) -> Option:
    """Return the option for a choice among texts."""
    return Option(name, label, help, "string", False, False, None, choices=choices)


def _number(
    name: str, label: str, help: str, least: float, most: float, *, required: bool = False
) -> Option:
    """Return the option for a number from ``least`` to ``most``."""
    return Option(name, label, help, "number", False, required, None, least=least, most=most)


def _count(name: str, label: str, help: str, most: float = 1024) -> Option:
    """Return the option for a whole number from 1 to ``most``."""
    return Option(name, label, help, "integer", False, False, None, least=1, most=most)


LOAD = (
    _number("isl", "Input tokens", "Input tokens of a request.", 1, MAX_TOKENS, required=True),
    _number("osl", "Output tokens", "Output tokens of a request.", 1, MAX_TOKENS, required=True),
    _number("concurrency", "Requests in flight", "Requests in flight.", 1, MAX_USERS),
    _number("rate", "or requests/s", "Enter this or requests in flight. "
            "Arrivals are random (Poisson).", 1e-6, MAX_RPS),
)  # fmt: skip
ENGINE = (
    _choice("precision", "Weights", "Precision of the weights. Default: published.", tuple(BYTES)),
    _choice("kv_cache", "KV cache", "Precision of the KV cache. Default: the engine's.",
            tuple(BYTES)),
    _choice("engine", "Engine", "Engine. Default: vllm.", ENGINES),
    _text("engine_version", "Engine version", "Version of the engine, such as 0.19.0.", 60),
    _number("draft_tokens", "Tokens drafted", "Draft tokens per step (speculative decoding).", 0,
            MOST_DRAFTED),
    _number("accepted_tokens", "Accepted draft tokens", "Accepted draft tokens, on average.", 0,
            MOST_DRAFTED),
    _number("acceptance", "Share accepted", "Share of the draft tokens that is accepted, instead "
            "of accepted_tokens.", 0, 1),
    _number("max_num_seqs", "Maximum sequences in a batch", "Maximum decode sequences per "
            "rank. Default: limited by memory.", 1, MAX_USERS),
    _number("chunk_tokens", "Maximum prompt tokens per iteration", "Chunked prefill "
            "budget. Default: 8192.", 1, MOST_TOKENS),
    _number("prefix_hit_rate", "Prefix hit rate", "Share of a prompt in the prefix cache.", 0,
            MOST_HITS),
    _choice("ttft_statistic", "TTFT statistic", "Statistic of TTFT that is shown. Default: mean. "
            "SLOs use percentiles.",
            ("mean", "median")),
    _number("rounds", "Requests per user", "Requests that each user sends in sequence. Default: "
            "10, as in benchmarks. For steady traffic, enter 1000.", 1, 1e9),
    _choice("equal_lengths", "Equal request lengths", "Default: yes for benchmarks without "
            "InferenceMAX request lengths, else no.", ("yes", "no")),
    _number("recv_interval", "SGLang's recv_interval", "Iterations between SGLang's polls for "
            "requests. Default: 1. With InferenceMAX request lengths: 10 or 30.", 1, MOST_RECV),
    _count("lora_rank", "Rank of LoRA adapters", "Rank of LoRA adapters."),
    _count("lora_active", "Adapters in use at once", "Different LoRA adapters in use at the same "
           "time.", 4096),
    _choice("mode", "Prefill and decode", "agg, or disagg: separate prefill and decode. Default: "
            "agg.", ("agg", "disagg")),
)  # fmt: skip
PARALLELISM = {
    side: tuple(
        _count(f"{side}{width}", WIDTH_LABELS[width], f"{WIDTH_LABELS[width]}.") for width in WIDTHS
    )
    for side in SIDES
}
WORKERS = {
    side: _number(f"{side}workers", f"{side.strip('_').capitalize()} workers",
                  "Number of workers.", 1, 1e5)
    for side in SIDES[1:]
}  # fmt: skip
ESTIMATE = {
    option.name: option
    for option in (
        _text("model", "Model", "Name in the catalogue or on Hugging Face.", 200, required=True),
        _text("gpu", "GPU", "GPU type, such as H100-SXM or h100_sxm.", 80, required=True),
        *LOAD,
        *ENGINE,
        *(option for options in PARALLELISM.values() for option in options),
        *WORKERS.values(),
    )
}
