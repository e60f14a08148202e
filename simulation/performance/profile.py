"""What every performance profile can do: the one protocol behind which four kinds stand.

An iteration is described by four numbers, which the engine keeps up to date in O(1):

    b  decodes          sequences that each get one token
    c  decode_context   KV tokens those sequences attend to, summed over them
    p  prefill_tokens   prompt tokens computed in this iteration, over all its chunks
    a  prefill_pairs    query-key pairs: chunk * (tokens before it + chunk / 2), summed over chunks

so c / b is the mean context of a decode, a / p the mean number of keys of a prompt token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
from simulation.performance.curves import Curve, evaluate, inside, measured_to
from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class Check:
    """What predictions were compared with, and how they came out; errors are of (predicted -
    measured) / measured, as fractions."""

    quantity: str  # prefill time, TPOT, TTFT, power ...
    against: str  # the rows: where from, and whether the fit had seen them
    rows: int
    mape: float  # mean of the absolute errors
    median: float  # of the absolute errors
    p95: float  # of the absolute errors
    bias: float  # mean error, signed


def check(quantity: str, against: str, measured: FloatArray, predicted: FloatArray) -> Check:
    """Compare two arrays of the same shape, not empty; ``measured`` must be positive."""
    if not np.size(measured):
        raise SimulationError(
            f"There is no measurement of {quantity} to compare with ({against}); leave the check "
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


BEYOND = 0.01  # share of iterations outside of what was measured from which on it is said


@runtime_checkable
class Profile(Protocol):
    """Iteration latency and limits of one model on one GPU arrangement.

    ``curve`` is all that the compiled engine and the vectorised functions below need to know of
    the kind; a new kind is a new way to make one.
    """

    @property
    def model(self) -> str: ...
    @property
    def gpu(self) -> str: ...
    @property
    def tp(self) -> int:
        """GPUs of one instance."""
        ...

    @property
    def max_batch(self) -> int:
        """Sequences in a batch."""
        ...

    @property
    def max_batch_tokens(self) -> int:
        """Prefill tokens and decodes of one iteration (the chunked prefill budget)."""
        ...

    @property
    def kv_capacity_tokens(self) -> int: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def kind(self) -> str:
        """linear, table, operator or roofline."""
        ...

    @property
    def curve(self) -> Curve: ...
    @property
    def start_s(self) -> float:
        """Seconds of every request between its arrival and its first iteration that are no queue
        (the server's front end, tokens of the text, launches); they hold nothing back. 0 where
        prefill times were measured from the arrival on."""
        ...

    @property
    def checks(self) -> tuple[Check, ...]: ...
    @property
    def spread(self) -> float:
        """Standard deviation of ln(predicted / measured) that what is modelled in it is expected to
        have; 0 where nothing is."""
        ...


def iteration_s(
    profile: Profile,
    decodes: npt.ArrayLike,
    decode_context: npt.ArrayLike,
    prefill_tokens: npt.ArrayLike,
    prefill_pairs: npt.ArrayLike,
) -> FloatArray:
    """Seconds of iterations, broadcast over the four arrays; 0 where nothing is computed."""
    return evaluate(profile.curve, decodes, decode_context, prefill_tokens, prefill_pairs)


def measured_range(
    profile: Profile,
    decodes: npt.ArrayLike,
    decode_context: npt.ArrayLike,
    prefill_tokens: npt.ArrayLike,
    prefill_pairs: npt.ArrayLike,
) -> BoolArray:
    """Whether each iteration lies inside what the profile was measured or fitted on."""
    return inside(profile.curve, decodes, decode_context, prefill_tokens, prefill_pairs)


def provenance_at(profile: Profile, outside: float) -> Provenance:
    """Of what is said of a load, ``outside`` of whose iterations (a share) lie beyond what the
    profile was measured on: what is extrapolated is modelled, however well the rest was measured.
    """
    of = profile.provenance
    if of.kind != "measured" or outside < BEYOND:
        return of
    return Provenance(
        "modelled",
        f"{outside:.0%} of iterations at this load are beyond what was measured"
        f"{measured_to(profile.curve)}, and extrapolated; {of.source}",
    )
