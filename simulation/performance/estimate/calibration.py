"""The calibration of estimates: how serving differs from kernels that run alone.

All models and GPUs have the same few numbers, measured or not. A new model or GPU differs only by
its shape, its peaks and the kernels of its family. Engines differ by factors on a few numbers.
``tools/catalogue/fit_estimate.py`` fits the numbers. It also measures their error on models and GPU
types that the fit did not see: the median and the 90th percentile. A cell is a group of similar
deployments with one error. Cells differ by mode, load, engine, and whether the deployment drafts
tokens. The most specific cell with enough rows applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

ENGINES = ("vllm", "sglang", "trtllm")
ROUNDS = 10.0  # consecutive requests of each user in the benchmarks of the fit


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted constants of estimates: times outside kernels in seconds, and factors of engines.

    They also state how prompts and decodes slow each other. The defaults are round figures that
    were assumed before any fit. There is no factor on kernels, because fitted ones increased the
    error on models and GPU types that the fit did not see.
    """

    unpacked: float = 1.0  # factor on 16-bit kernels that unpack 4-bit weights
    # Factor on 8-bit products of models with experts, except on vLLM. Such weights have a scale for
    # each block of 128 (DeepSeek-V3, arXiv 2412.19437, section 3.3); the measured kernels have one.
    scaled: float = 1.0
    # Added to a collective between nodes. An all-reduce of 8 to 256 KB took this much longer on two
    # servers than on one with half the GPUs (Vidur's A100 servers, median).
    far_s: float = 95e-6
    iteration_s: float = 0.3e-3  # scheduling, sampling
    # Host time per sequence that one rank decodes, in each iteration: scheduling, sampling, output.
    # It overlaps with the GPU's time.
    sequence_s: float = 20e-6
    # Factor on kernels of vendors without measured kernels, beyond their published peaks.
    foreign: float = 1.5
    # Seconds that AITER's persistent kernel of latent attention adds to each layer of a decode.
    persistent_s: float = 100e-6
    # Probability that a drafted token is accepted after those before it. DeepSeek-V3 has 0.85 to
    # 0.9 for the first one (arXiv 2412.19437, section 5.4.3).
    acceptance: float = 0.7
    draft_s: float = 0.3e-3  # host time of one pass that drafts a token, except on TensorRT-LLM
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

    def of(self, constant: str, engine: str) -> float:
        """Return the constant "mix", "order" or "start" (in seconds) with an engine's factor."""
        base = {"mix": self.mix, "start": self.start_s, "order": self.order}[constant]
        return base * self.engines.get(f"{constant}.{engine}", 1.0)

    def scaled_by(self, engine: str) -> float:
        """Return the factor of an engine on 8-bit products with a scale for each block.

        It is 1 for vLLM, which has another kernel: all of its measurements had slow hosts.
        """
        return 1.0 if engine == "vllm" else self.scaled

    def values(self) -> dict[str, float]:
        """Return all numbers by name, engine factors as ``what.engine``."""
        numbers = {name: getattr(self, name) for name in CONSTANTS}
        return numbers | {key: self.engines.get(key, 1.0) for key in ENGINE_FACTORS}

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """Return a calibration with some numbers replaced, named as in ``values``."""
        numbers = {key: value for key, value in values.items() if key in CONSTANTS}
        engines = {key: value for key, value in values.items() if key in ENGINE_FACTORS}
        return replace(self, **numbers, engines={**self.engines, **engines})


def release_order(version: str) -> tuple[tuple[int, ...], float]:
    """Return a sort key of a version; versions without a number (nightly builds) come first."""
    match = re.match(r"v?(\d+(?:\.\d+)*)[-.]?([a-z]*)[-.]?(\d*)", version.strip().lower())
    if match is None:
        return (), 0.0
    numbers = tuple(int(number) for number in match[1].split("."))
    # A release candidate or development version precedes its release; a post-release follows.
    pre_release_or_post = 0.0
    if match[2]:
        pre_release_or_post = 1.0 if match[2] == "post" else -1.0
    return numbers, pre_release_or_post + int(match[3] or 0) / 1e9


CONSTANTS = tuple(f.name for f in fields(Calibration) if f.type == "float")
PER_ENGINE = ("mix", "start", "order")
ENGINE_FACTORS = tuple(f"{constant}.{engine}" for constant in PER_ENGINE for engine in ENGINES)

LOADS = {"low": 16.0, "middle": 128.0, "high": np.inf}  # requests in flight, at most


@dataclass(frozen=True, slots=True)
class Cell:
    """Median (``tbt``, ``ttft``) and 90th percentile of the relative errors of similar deployments.

    They come from ``rows`` measured rows.
    """

    tbt: float
    tbt_90: float
    ttft: float
    ttft_90: float
    rows: int


@dataclass(frozen=True, slots=True)
class CellSelector:
    """Properties of a deployment that select the cell of its errors."""

    split: bool  # disaggregated
    users: float  # requests in flight
    engine: str
    drafts: bool  # it drafts tokens

    def names(self) -> Iterator[str]:
        """Yield the names of the matching cells, the most specific first."""
        mode = "disagg" if self.split else "agg"
        load = next(name for name, max_users in LOADS.items() if self.users <= max_users)
        drafts = "drafts" if self.drafts else "plain"
        yield f"{mode} {load} {self.engine} {drafts}"
        yield f"{mode} {load} {drafts}"
        yield f"{mode} {drafts}"
        yield mode


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """Errors of the estimates against measurements, by cell; cells with too few rows are absent."""

    cells: Mapping[str, Cell]  # by the names that ``CellSelector.names`` yields

    def of(self, where: CellSelector) -> tuple[str, Cell]:
        """Return the name and the errors of the most specific cell for a deployment (``where``)."""
        key = next(key for key in where.names() if key in self.cells)
        return key, self.cells[key]
