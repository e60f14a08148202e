"""Compare a profile with measured rows, and state its errors, in all and for each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray, IntArray, TextArray
from simulation.performance.curves import LINEAR, MOST_DECODES, MOST_TOKENS, NO_LIMIT
from simulation.performance.profile import Check, Profile, check, iteration_s, measured_range
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import KINDS, PHASES, Phase, Provenance

PREFILL, TBT, SERVED_TBT, TTFT = "prefill time", "TBT", "TBT while serving", "TTFT of one request"
SERVED_TTFT = "TTFT while serving"  # needs a model of waiting besides the profile
QUANTITIES = (PREFILL, TBT, SERVED_TBT, TTFT, SERVED_TTFT)
DECODE_ITERATION, PREFILL_ITERATION = "decode iteration time", "prefill iteration time"
PHASE_OF = {
    PREFILL: "prefill", TTFT: "prefill", SERVED_TTFT: "prefill", PREFILL_ITERATION: "prefill",
    TBT: "decode", SERVED_TBT: "decode", DECODE_ITERATION: "decode",
}  # fmt: skip
ROBUST_Z = 3.5  # robust z-score of the log error; Iglewicz and Hoaglin 1993
FITTED = "the rows it was fitted to"
UNSEEN = "left out of the fit"  # part of ``Check.against`` for rows that the fit had not seen
MIN_ROWS = 5  # a check of fewer rows says little
EXPECTED = "from the prediction errors of its kernels"
INSIDE, OUTSIDE = "inside the measured range", "beyond the measured range"


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Measured and predicted times, one entry per comparison; a row may have several entries.

    ``size`` is the load of an entry, the x axis of a plot. It is prompt tokens for prefill and TTFT
    of one request, sequences for TBT, and requests in flight for TTFT while serving.
    """

    quantity: TextArray
    row: IntArray  # index into the rows
    size: FloatArray
    measured_s: FloatArray
    predicted_s: FloatArray
    inside: BoolArray  # inside the range that the profile was measured on

    @property
    def error(self) -> FloatArray:
        """Return the relative errors, ``(predicted - measured) / measured``."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def factors(self) -> FloatArray:
        """Return the measured over the predicted times."""
        return self.measured_s / self.predicted_s

    @property
    def outlier(self) -> BoolArray:
        """Return the mask of outliers among the log errors of each quantity.

        An outlier is further from the median than ``ROBUST_Z`` scaled median absolute deviations.
        There is none if more than half of the errors are equal.
        """
        result = np.zeros(self.row.size, np.bool_)
        log_errors = np.log(np.maximum(self.predicted_s, 1e-12) / self.measured_s)
        for name in np.unique(self.quantity):
            of_quantity = self.quantity == name
            logs = log_errors[of_quantity]
            deviations = np.abs(logs - np.median(logs))
            spread = 1.4826 * np.median(deviations)  # estimates the standard deviation if normal
            result[of_quantity] = deviations > ROBUST_Z * spread if spread > 0 else False
        return result

    @classmethod
    def at(cls, mask: BoolArray, quantity: str, *values: npt.NDArray[Any]) -> Residuals:
        """Return the residuals of one quantity, one for each row in ``mask``.

        ``values`` are the other fields, in their order.
        """
        row = np.flatnonzero(mask).astype(np.int64)
        return cls(np.full(row.size, quantity), row, *values)

    def of(self, quantity: str) -> Residuals:
        """Return the residuals of one quantity."""
        return self.take(self.quantity == quantity)

    def take(self, which: npt.NDArray[np.generic]) -> Residuals:
        """Return the residuals at a mask or at indices."""
        return Residuals(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Parameters of the wait for a first token under load, from ``calibration.Calibration``."""

    start_s: float  # from arrival to the first iteration
    order: float  # share of the other users whose prompts are computed first

    def ttft_s(
        self,
        prompt_s: FloatArray,
        tbt_s: FloatArray,
        osl: FloatArray,
        users: FloatArray,
        in_service: FloatArray,
    ) -> FloatArray:
        """Return TTFT in seconds of ``users``, who each send a request when the last one ended.

        It is the sum of ``start_s``, the running iteration, the request's own prompt, and the
        prompts of the share ``order`` of the other users in service. ``in_service`` users fit in
        the batch. The others wait for one of them to end, by Little's law. All arrays have the
        shape ``[n]``.
        """
        ttft = self.before_s(tbt_s, in_service) + prompt_s * self.prompts(in_service)
        wait: FloatArray = (ttft + (osl - 1.0) * tbt_s) * (users / in_service - 1.0)
        return ttft + wait

    def before_s(self, tbt_s: FloatArray, users: FloatArray) -> FloatArray:
        """Return the seconds before the first prompt at ``users`` requests in flight.

        They are ``start_s`` and one running iteration from two users on, and 0 for a lone user.
        Between one and two users they grow linearly, with the chance that there is another user.
        """
        before: FloatArray = (self.start_s + tbt_s) * np.clip(users - 1.0, 0.0, 1.0)
        return before

    def prompts(self, users: FloatArray) -> FloatArray:
        """Return the number of prompts computed before a first token, including its own."""
        count: FloatArray = 1.0 + self.order * (np.maximum(users, 1.0) - 1.0)
        return count


def prefill_seconds(profile: Profile, batch: FloatArray, isl: FloatArray) -> FloatArray:
    """Return the seconds to prefill ``batch`` prompts of ``isl`` tokens on an idle instance.

    The prompts run in one iteration if they fit in ``max_batch_tokens``, or if the profile was
    measured on such an iteration. Else they run in chunks of ``max_batch_tokens``. A token attends
    to half of its prompt on average.
    """
    tokens, keys = batch * isl, isl / 2
    in_one_iteration = measured_range(profile, 0.0, 0.0, tokens, tokens * keys)
    in_one_iteration |= tokens <= profile.max_batch_tokens
    chunk = np.minimum(tokens, float(profile.max_batch_tokens))
    full_chunks, rest = np.divmod(tokens, chunk)
    chunked_s = full_chunks * iteration_s(profile, 0.0, 0.0, chunk, chunk * keys)
    chunked_s += iteration_s(profile, 0.0, 0.0, rest, rest * keys)
    whole_s = iteration_s(profile, 0.0, 0.0, tokens, tokens * keys)
    return np.where(in_one_iteration, whole_s, chunked_s)


def compare_with(
    profile: Profile, rows: BenchmarkRows, waiting: Waiting | None = None
) -> Residuals:
    """Compare the predictions of ``profile`` with measured ``rows`` of the same arrangement.

    Of a batch row, the prefill time and the TBT are compared. Of a served row, the TBT is compared
    with the mean iteration of the steady state, and the TTFT at a concurrency of 1. Above 1, much
    of TTFT is waiting. It is compared only if ``waiting`` is given, as a separate quantity.
    """
    batches = rows.has_numbers_in("prefill_s", "tokens") & rows.ran_as_one_batch
    lone = rows.has_numbers_in("ttft_s", "isl") & (rows.concurrency <= 1)
    parts = [
        _prompt_residuals(PREFILL, profile, rows, batches, rows.batch, rows.prefill_s),
        _tbt_residuals(profile, rows, served=False),
        _tbt_residuals(profile, rows, served=True),
        _prompt_residuals(TTFT, profile, rows, lone, np.ones(rows.rows), rows.ttft_s),
    ]
    if waiting is not None:
        parts.append(_served_ttft_residuals(profile, rows, waiting))
    return concatenate_residuals(parts)


def concatenate_residuals(parts: Sequence[Residuals]) -> Residuals:
    """Return the residuals of several comparisons as one."""
    return Residuals(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in Residuals.__slots__)
    )


def checks_of(residuals: Residuals, against: str) -> tuple[Check, ...]:
    """Return the errors of each quantity, separately inside and beyond the measured range.

    ``against`` names the rows.
    """
    checks = []
    for quantity in QUANTITIES:
        for inside in (True, False):
            selected = (residuals.quantity == quantity) & (residuals.inside == inside)
            if selected.any():
                which = f"{against}, {INSIDE if inside else OUTSIDE}"
                part = residuals.take(selected)
                checks.append(check(quantity, which, part.measured_s, part.predicted_s))
    return tuple(checks)


def telling_check(checks: Sequence[Check]) -> Check | None:
    """Return the check that represents a profile: of the quantity that it predicts worst.

    Checks on unseen rows are preferred, then checks inside the measured range, each if they have at
    least ``MIN_ROWS`` rows. Then each quantity counts with its worst check. TTFT while serving
    counts only if nothing else was checked, since most of it is waiting. None if there are no
    checks.
    """
    by_quantity: dict[str, list[Check]] = {}
    for candidate in checks:
        by_quantity.setdefault(candidate.quantity, []).append(candidate)
    if len(by_quantity) > 1:
        by_quantity.pop(SERVED_TTFT, None)
    worst = []  # check of each quantity
    for of_quantity in by_quantity.values():
        # Both filters apply in turn, each only if enough rows remain.
        for preference in (UNSEEN, INSIDE):
            preferred = [candidate for candidate in of_quantity if preference in candidate.against]
            if sum(candidate.rows for candidate in preferred) >= MIN_ROWS:
                of_quantity = preferred
        worst.append(max(of_quantity, key=lambda candidate: candidate.mape))
    inside = [candidate for candidate in worst if INSIDE in candidate.against]
    return max(inside or worst, key=lambda candidate: candidate.mape, default=None)


def stated_check(checks: Sequence[Check], spread: float, modelled: bool) -> Check | None:
    """Return the error that a profile states: that of ``telling_check``, or the expected error.

    The expected error is ``spread``, a standard deviation of the log error; 0 if unknown. It is
    stated if nothing was checked. It is also stated if it is larger than the checked error and the
    profile is modelled or was checked on fewer than ``MIN_ROWS`` rows. It is returned as a check of
    0 rows. None if neither error is known.
    """
    telling = telling_check(checks)
    unsure = telling is None or ((modelled or telling.rows < MIN_ROWS) and spread > telling.mape)
    if spread and unsure:
        # The mean size of a normal error is 0.8 of its deviation. The whole deviation is stated,
        # since it covers kernels only and other errors add to it.
        return Check("iteration time", EXPECTED, 0, spread, spread, 2 * spread, 0.0)
    return telling


def stated_check_of(profile: Profile) -> Check | None:
    """Return the ``stated_check`` of a profile."""
    return stated_check(profile.checks, profile.spread, profile.provenance.kind == "modelled")


def _prompt_residuals(
    quantity: str,
    profile: Profile,
    rows: BenchmarkRows,
    mask: BoolArray,
    prompts: FloatArray,
    measured_s: FloatArray,
) -> Residuals:
    """Return the residuals of ``measured_s``, times of prompts that no other request delays.

    A row computes ``prompts`` prompts at once. Both arrays have a value for every row. ``mask`` are
    the rows that were measured.
    """
    count, isl = prompts[mask], rows.isl[mask]
    tokens = count * isl
    predicted = prefill_seconds(profile, count, isl)
    inside = measured_range(profile, 0.0, 0.0, tokens, tokens * isl / 2)
    return Residuals.at(mask, quantity, tokens, measured_s[mask], predicted, inside)


def _tbt_residuals(profile: Profile, rows: BenchmarkRows, *, served: bool) -> Residuals:
    """Return the residuals of the TBT of served rows, or of batch rows if not ``served``."""
    mean_iteration: tuple[npt.ArrayLike, ...]  # decodes, context, prompt tokens, token pairs
    if served:
        quantity, selected = SERVED_TBT, rows.served_rows_with("tbt_s")
        selected_rows = rows.take(selected)
        decodes = selected_rows.decoding
        mean_iteration = _mean_iteration(selected_rows, decodes)
    else:
        quantity = TBT
        selected = rows.has_numbers_in("tbt_s", "batch") & rows.ran_as_one_batch
        selected_rows = rows.take(selected)
        decodes = selected_rows.batch
        # Rows in the WVA's format have no lengths. The linear profile does not need them, so use 0.
        mean_iteration = (decodes, decodes * np.nan_to_num(selected_rows.context), 0.0, 0.0)
    predicted = iteration_s(profile, *mean_iteration)
    inside = measured_range(profile, *mean_iteration)
    return Residuals.at(selected, quantity, decodes, selected_rows.tbt_s, predicted, inside)


def _mean_iteration(rows: BenchmarkRows, decodes: FloatArray) -> tuple[FloatArray, ...]:
    """Return b, c, p and a of the mean iteration of served rows in steady state.

    It decodes ``decodes`` sequences. Each ends after ``osl`` iterations, and another one then
    starts with a prompt, so an iteration has decodes * isl / osl prompt tokens on average.
    """
    tokens = decodes * rows.isl / rows.osl
    return decodes, decodes * (rows.isl + rows.osl / 2), tokens, tokens * rows.isl / 2


def _served_ttft_residuals(profile: Profile, rows: BenchmarkRows, waiting: Waiting) -> Residuals:
    """Return the residuals of TTFT under load, predicted with ``waiting``.

    Memory and ``max_batch`` limit the requests in service.
    """
    selected = rows.served_rows_with("ttft_s") & (rows.concurrency > 1)
    part = rows.take(selected)
    sequences_in_memory = max(profile.kv_capacity_tokens, 1) / (part.isl + part.osl)
    largest_batch = np.clip(np.floor(sequences_in_memory), 1, profile.max_batch)
    in_service = np.minimum(part.concurrency, largest_batch)
    load = _mean_iteration(part, np.fmin(in_service, part.decoding))
    prompt_s = prefill_seconds(profile, np.ones(part.rows), part.isl)
    tbt_s, inside = iteration_s(profile, *load), measured_range(profile, *load)
    predicted = waiting.ttft_s(prompt_s, tbt_s, part.osl, part.concurrency, in_service)
    return Residuals.at(selected, SERVED_TTFT, part.concurrency, part.ttft_s, predicted, inside)


@dataclass(frozen=True, slots=True)
class PhaseBasis:
    """The origin of the times of one phase (prefill or decode) of a profile, and their error."""

    name: str  # prefill or decode
    kind: str  # measured, published, modelled or assumed
    source: str
    error: Check | None  # that the phase states; None: unknown
    # Largest measured iteration: prompt tokens in prefill, sequences in decode; None: not measured.
    most: float | None


def phases(profile: Profile) -> tuple[PhaseBasis, ...]:
    """Return the origin and error of prefill times, and then those of decode times."""
    limits = (NO_LIMIT, NO_LIMIT)
    if profile.curve.kind == LINEAR:
        limits = profile.curve.values[MOST_TOKENS], profile.curve.values[MOST_DECODES]
    bases = []
    for name, phase, limit in zip(PHASES, phases_of(profile), limits, strict=True):
        provenance = phase.provenance
        checks = [check for check in profile.checks if PHASE_OF.get(check.quantity, name) == name]
        modelled = provenance.kind in ("modelled", "assumed")
        most = phase.most if phase.most < NO_LIMIT else float(limit)
        error = stated_check(checks, profile.spread, modelled)
        measured_most = most if most < NO_LIMIT and not modelled else None
        bases.append(PhaseBasis(name, provenance.kind, provenance.source, error, measured_most))
    return tuple(bases)


def phases_of(profile: Profile) -> tuple[Phase, Phase]:
    """Return the phases prefill and decode of a profile; by default, both have its provenance."""
    default = Phase(profile.provenance)
    return getattr(profile, "phases", None) or (default, default)


def combined_provenance(parts: Sequence[Phase]) -> Provenance:
    """Return one provenance for prefill and decode: the less certain kind, and both sources."""
    kind = max((part.provenance.kind for part in parts), key=KINDS.index)
    prefill, decode = (part.provenance for part in parts)
    if prefill.source == decode.source:
        return Provenance(kind, decode.source)
    return Provenance(kind, f"Decode: {decode.source}. Prefill: {prefill.source}")
