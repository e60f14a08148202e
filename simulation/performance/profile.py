"""The protocol of all performance profiles.

An iteration is described by four numbers, which the engine keeps up to date in O(1):

    b  decodes          sequences that each get one token
    c  decode_context   KV tokens that these sequences attend to, in total
    p  prefill_tokens   prompt tokens of all chunks
    a  prefill_pairs    query-key pairs: chunk * (tokens before it + chunk / 2), summed over chunks

So c / b is the mean context of a decode, and a / p the mean number of keys of a prompt token.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
from simulation.performance.curves import Curve, evaluate, inside
from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class Check:
    """Errors of a profile's predictions, (predicted - measured) / measured, as fractions."""

    quantity: str  # prefill time, TPOT, TTFT, power ...
    against: str  # the rows: their origin, and whether the fit had seen them
    rows: int
    mape: float  # mean of the absolute errors
    median: float  # of the absolute errors
    p95: float  # of the absolute errors
    bias: float  # mean error, signed


def check(quantity: str, against: str, measured: FloatArray, predicted: FloatArray) -> Check:
    """Return the errors of ``predicted`` against ``measured``, arrays of one shape.

    ``measured`` must be positive. Raises SimulationError if they are empty.
    """
    if not np.size(measured):
        raise SimulationError(
            f"There is no measurement of {quantity} to compare with ({against}). Leave the check "
            "out, or give rows that have it."
        )
    errors = np.asarray(predicted, np.float64) / np.asarray(measured, np.float64) - 1.0
    size = np.abs(errors)
    return Check(
        quantity=quantity,
        against=against,
        rows=int(size.size),
        mape=float(size.mean()),
        median=float(np.median(size)),
        p95=float(np.quantile(size, 0.95)),
        bias=float(errors.mean()),
    )


@runtime_checkable
class Profile(Protocol):
    """Iteration latency and limits of one model on one GPU arrangement.

    The compiled engine and the vectorised functions below only use ``curve``. A new kind of profile
    needs only a new way to make a curve.
    """

    @property
    def model(self) -> str: ...
    @property
    def gpu(self) -> str: ...
    @property
    def tp(self) -> int: ...  # GPUs of one instance
    @property
    def max_batch(self) -> int: ...  # largest number of sequences in a batch
    @property
    def max_batch_tokens(self) -> int: ...  # prefill tokens + decodes of an iteration
    @property
    def kv_capacity_tokens(self) -> int: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def kind(self) -> str: ...  # linear, table, operator, roofline or attention-ffn
    @property
    def curve(self) -> Curve: ...
    @property
    def start_s(self) -> float:
        """Return the seconds from arrival to the first iteration, without queueing.

        They cover the server's front end, tokenisation and launches. They do not delay other
        requests. 0 if prefill times were measured from the arrival on.
        """

    @property
    def checks(self) -> tuple[Check, ...]: ...
    @property
    def spread(self) -> float:
        """Return the standard deviation of ln(predicted / measured) of modelled times.

        0 if no part of the profile is modelled.
        """


def iteration_s(profile: Profile, *loads: npt.ArrayLike) -> FloatArray:
    """Return the seconds of iterations; 0 for an empty iteration.

    ``loads`` are four arrays that broadcast: decodes, their KV tokens in total, prompt tokens, and
    query-key pairs of the prompts (b, c, p and a of the module's docstring).
    """
    return evaluate(profile.curve, *loads)


def measured_range(profile: Profile, *loads: npt.ArrayLike) -> BoolArray:
    """Return the mask of iterations inside the range that the profile was measured or fitted on.

    For ``loads`` see ``iteration_s``.
    """
    return inside(profile.curve, *loads)
