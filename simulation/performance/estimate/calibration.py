"""How serving differs from kernels that run alone, as a few numbers with a meaning each.

The numbers hold for all models and GPUs: what was never measured gets the same ones, so a new model
or GPU differs by its shape, its peaks and the kernels of its family alone. Engines differ by a
factor on a few of them. They are fitted by ``tools/catalogue/fit_estimate.py``, which also
measures how far they are off on models and GPU types that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

ENGINES = ("vllm", "sglang", "trtllm")
ROUNDS = 10.0  # requests of each user in a benchmark, one after the other: what is fitted to


@dataclass(frozen=True, slots=True)
class Calibration:
    """Times in seconds beside kernels, how prompts and decodes meet, and how engines differ.

    The defaults are what was assumed before any fit, in round figures. There is no factor on
    kernels: fitted ones make models and GPU types that the fit did not see worse, not better.
    """

    unpacked: float = 1.0  # factor on 16-bit kernels where 4-bit integer weights are unpacked
    # More for a collective between nodes: what an all-reduce of 8 to 256 KB on two servers took
    # more than on one of half as many GPUs (Vidur's A100 servers, median).
    far_s: float = 95e-6
    iteration_s: float = 0.3e-3  # scheduling, sampling
    # Of vLLM's host for each sequence that one rank decodes; the others' work while the GPU does.
    sequence_s: float = 10e-6
    mix: float = 0.9  # of the prompts of others, what falls between a request's tokens
    start_s: float = 0.03  # from arrival to the first iteration
    # Of the host for an operator of an iteration with prompts, which may be many kernels.
    eager_s: float = 100e-6
    # Of the other users, whose prompts one's own waits for where all start together and ask ROUNDS
    # times; by the first round alone it is half of 1 / ROUNDS, and the order lasts a little.
    order: float = 0.07
    # Decode iterations that TensorRT-LLM lets a prompt wait for those of the other copies of
    # attention, to compute them together (the default of its attention_dp_config.timeout_iters).
    gather: float = 50.0
    # Of the decode iterations between two of SGLang's looks for requests, those before one is seen.
    polls: float = 1.0
    # Prompts of others that one's own waits for where all requests have the same lengths: users who
    # started one after the other finish so, and find the prompt of the one before being computed.
    train: float = 1.0
    split_decode: float = 1.0  # factor on decode iterations where prefill is on other workers
    split_order: float = 1.5  # factor on the wait for others there
    split_start: float = 1.5  # and on the start, which is through two engines
    engines: Mapping[str, float] = field(default_factory=dict)  # "mix.vllm" and so on: factors

    def of(self, what: str, engine: str) -> float:
        """``mix``, ``start`` or ``order`` of an engine."""
        base = {"mix": self.mix, "start": self.start_s, "order": self.order}[what]
        return base * self.engines.get(f"{what}.{engine}", 1.0)

    def values(self) -> dict[str, float]:
        """All numbers by name, engine factors as ``what.engine``."""
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "engines"}
        return numbers | {key: self.engines.get(key, 1.0) for key in ENGINE_FACTORS}

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """With some numbers replaced, by the names of ``values``."""
        numbers = {key: value for key, value in values.items() if "." not in key}
        engines = {key: value for key, value in values.items() if "." in key}
        return replace(self, **numbers, engines={**self.engines, **engines})


ENGINE_FACTORS = tuple(f"{w}.{e}" for w in ("mix", "start", "order") for e in ENGINES)
