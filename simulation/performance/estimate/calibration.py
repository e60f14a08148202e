"""The calibration of estimates: how serving differs from kernels that run alone.

The same few numbers hold for all models and GPUs, measured or not. A new model or GPU differs only
by its shape, its peaks and the kernels of its family. Engines differ by factors on a few numbers.
``tools/catalogue/fit_estimate.py`` fits the numbers. It also measures their error on models and
GPU types that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

ENGINES = ("vllm", "sglang", "trtllm")
ROUNDS = 10.0  # consecutive requests of each user in the benchmarks of the fit


@dataclass(frozen=True, slots=True)
class Calibration:
    """Times outside kernels in seconds, interference of prompts and decodes, engine factors.

    The defaults are round figures that were assumed before any fit. There is no factor on kernels,
    because fitted ones increased the error on models and GPU types that the fit did not see.
    """

    unpacked: float = 1.0  # factor on 16-bit kernels that unpack 4-bit integer weights
    # Added to a collective between nodes. An all-reduce of 8 to 256 KB took this much longer on two
    # servers than on one with half the GPUs (Vidur's A100 servers, median).
    far_s: float = 95e-6
    iteration_s: float = 0.3e-3  # scheduling, sampling
    # Host time per sequence that one rank decodes, in each iteration: scheduling, sampling, output.
    sequence_s: float = 20e-6
    # Factor on expert layers, whose tokens spread unevenly over experts and GPUs. The kernels were
    # measured with even routing.
    imbalance: float = 1.3
    # Factor on kernels of vendors without measured kernels, beyond their published peaks.
    foreign: float = 1.5
    acceptance: float = 0.6  # probability that a drafted token is accepted after those before it
    median: float = 0.3  # share of the wait for others of the first round that a median TTFT shows
    mix: float = 0.9  # share of other users' prompts that falls between a request's tokens
    start_s: float = 0.03  # from arrival to the first iteration
    # Host time per operator of an iteration with prompts. An operator may be many kernels.
    eager_s: float = 100e-6
    # Share of the other users that a prompt waits for if all users start together and send ROUNDS
    # requests each. The first round alone gives 1 / (2 ROUNDS), but the order lasts longer.
    order: float = 0.07
    # Decode iterations that TensorRT-LLM delays a prompt to batch it with prompts of the other
    # attention ranks (default of attention_dp_config.timeout_iters).
    gather: float = 50.0
    # Share of SGLang's recv_interval that passes before a new request is seen.
    polls: float = 1.0
    # Prompts of others that a prompt waits for if all requests have the same lengths. Users who
    # start in sequence also finish in sequence, and each meets the prompt of the user before.
    train: float = 1.0
    split_decode: float = 1.0  # factor on decode iterations of disaggregated deployments
    split_order: float = 1.5  # factor on the wait for others there
    split_start: float = 1.5  # factor on the start there, since a request passes two engines
    engines: Mapping[str, float] = field(default_factory=dict)  # factors by "mix.vllm" and so on

    def of(self, what: str, engine: str) -> float:
        """Return ``mix``, ``start`` (seconds), ``order`` or ``sequence`` (seconds) of an engine."""
        base = {"mix": self.mix, "start": self.start_s, "order": self.order,
                "sequence": self.sequence_s}[what]  # fmt: skip
        return base * self.engines.get(f"{what}.{engine}", 1.0)

    def values(self) -> dict[str, float]:
        """Return all numbers by name, engine factors as ``what.engine``."""
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "engines"}
        return numbers | {key: self.engines.get(key, 1.0) for key in ENGINE_FACTORS}

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """Return a calibration with some numbers replaced, named as in ``values``."""
        numbers = {key: value for key, value in values.items() if "." not in key}
        engines = {key: value for key, value in values.items() if "." in key}
        return replace(self, **numbers, engines={**self.engines, **engines})


ENGINE_FACTORS = tuple(f"{w}.{e}" for w in ("mix", "start", "order", "sequence") for e in ENGINES)
