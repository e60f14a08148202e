"""What serving reaches of the published peaks, as a few numbers with a meaning each.

The numbers hold for all models and GPUs: what was never measured gets the same ones, so a new model
or GPU differs by its shape and its peaks alone. Engines differ by a factor on a few of them. They
are fitted by ``bench/fit_estimate.py``, which also measures how far they are off on models and GPU
types that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Shares of the published peaks, fixed times in seconds, and how engines differ.

    The defaults are what was assumed before any fit: shares that measured kernels reach, and round
    figures for the rest.
    """

    bandwidth: float = 0.8  # reading weights in 16 bits
    fp8_read: float = 0.9  # factor on it for 8-bit weights: scales, and less to hide latency behind
    fp4_read: float = 0.9
    int4_read: float = 0.7  # unpacked before use
    cache_bandwidth: float = 0.7  # reading the KV cache
    cache_compute: float = 0.4
    compute: float = 0.6  # projections
    decode_experts: float = 0.4  # experts, with the few tokens each gets in decode
    prefill_experts: float = 0.2  # and in prefill, uneven loads included
    attention: float = 0.4  # of prompts
    activations: float = 0.8
    link: float = 0.6
    kernel_s: float = 2e-6  # launch of an operator
    quantise_s: float = 1e-6
    mixture_s: float = 15e-6  # routing of a layer with experts
    mixer_s: float = 10e-6
    latent_s: float = 10e-6
    collective_s: float = 5e-6
    hop_s: float = 3e-6
    iteration_s: float = 1e-3  # scheduling, sampling
    shared: float = 0.8  # of the fixed time of a prompt, what it shares with decodes beside it
    mix: float = 0.9  # of the prompts of others, what falls between a request's tokens
    start_s: float = 0.05  # from arrival to the first iteration
    order: float = 0.2  # of the wait if all users had just arrived together
    split_decode: float = 1.0  # factors where prefill and decode are on different workers
    split_start: float = 1.0
    split_order: float = 1.0
    engines: Mapping[str, float] = field(default_factory=dict)  # "host.vllm" and so on: factors

    def of(self, what: str, engine: str) -> float:
        """``mix``, ``start`` or ``order`` of an engine, or its factor on ``host`` times."""
        base = {"host": 1.0, "mix": self.mix, "start": self.start_s, "order": self.order}[what]
        return base * self.engines.get(f"{what}.{engine}", 1.0)

    def values(self) -> dict[str, float]:
        """All numbers by name, engine factors as ``what.engine``."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "engines"}
        return own | {key: self.engines.get(key, 1.0) for key in ENGINE_FACTORS}

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """With some numbers replaced, by the names of ``values``."""
        own = {key: value for key, value in values.items() if "." not in key}
        engines = {key: value for key, value in values.items() if "." in key}
        return replace(self, **own, engines={**self.engines, **engines})


ENGINE_FACTORS = tuple(f"{w}.{e}" for w in ("host", "mix", "start", "order") for e in ENGINES)
