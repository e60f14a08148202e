"""Tell which rows of an uploaded file estimates use, and which estimates they change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import EXPECTED
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.estimates.deployment_rows import deployment
from planner.inputs.estimates.measured_corrections import (
    Change,
    MeasuredCorrections,
    Measurement,
    changes,
)
from planner.inputs.scenario.user_facts import UserFacts
from planner.models import Calibration
from planner.selectors.hardware import own_hardware
from planner.selectors.measured_corrections import (
    MS_COLUMNS,
    REQUIRED_COLUMNS,
    Row,
    calibration_table,
    deployment_rows,
    facts_of,
    measurements_of_files,
)
from simulation.performance.estimate.defaults import Deployment

LOAD = {"isl": 1024, "osl": 256, "concurrency": 16}  # of deployments that were not measured
LEAST_CHANGE = 0.005  # smallest relative change of an estimate that is listed
MOST_EFFECTS = 50  # most effects that are listed
FACTS = ("model", "gpu", "tp", "engine", "engine_version", "ttft_statistic", "replicas", "loop")
ASKED = tuple(name for name in FACTS if name != "loop")  # the loop follows from the load


@dataclass(frozen=True, slots=True)
class RowUse:
    """How estimates use one row of a measurement file."""

    row: int
    weight: float  # 0: not used, 1: without a defect
    reason: str  # why it weighs less or is not used


@dataclass(frozen=True, slots=True)
class Effect:
    """How a file changes the estimate of one deployment and its stated errors.

    Factors are the estimate with the file / without it. An error is the relative error within
    which half of all cases are.
    """

    model: str
    gpu: str
    gpus: int
    concurrency: float
    isl: float
    osl: float
    ttft_factor: float
    tbt_factor: float
    ttft_error_before: float
    ttft_error: float
    tbt_error_before: float
    tbt_error: float

    @property
    def size(self) -> float:
        """Return the sum of the absolute logarithms of both factors."""
        return abs(math.log(self.ttft_factor)) + abs(math.log(self.tbt_factor))

    @property
    def error_change(self) -> float:
        """Return the larger absolute change by the file of the stated errors of TTFT and TBT."""
        ttft, tbt = self.ttft_error - self.ttft_error_before, self.tbt_error - self.tbt_error_before
        return max(abs(ttft), abs(tbt))


@dataclass(frozen=True, slots=True)
class StatedFact:
    """A fact that a file's rows state: its name in FACTS, and its values."""

    name: str
    values: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """How estimates use a measurement file: its rows, and the estimates that it changes."""

    rows: tuple[RowUse, ...] = ()
    effects: tuple[Effect, ...] = ()  # the largest first
    changed: int = 0  # deployments with a changed estimate, of ``compared``
    compared: int = 0
    stated: tuple[StatedFact, ...] = ()  # stated by the file or the caller
    missing: tuple[str, ...] = ()  # facts that no row has

    @property
    def used_rows(self) -> int:
        """Return the number of rows that estimates use."""
        return sum(row.weight > 0 for row in self.rows)


NO_EVIDENCE = Evidence()  # of measured kernels


def evidence_of(calibration: Calibration) -> Evidence:
    """Return how estimates use a file of benchmark rows, and the estimates that it changes.

    Compares the corrections by all other files with those by all files including this one.
    """
    # The corrections without this file and with it.
    hardware, fit = own_hardware(), estimate_fit()
    other_files, this_file = _files(calibration)
    before = measurements_of_files(other_files, hardware) if other_files else None
    # This file comes last, so that its rows count as repeats of rows in earlier files.
    after = before
    if this_file["rows"]:
        after = measurements_of_files([*other_files, this_file], hardware)
    all_measurements = after.rows if after else ()
    own_measurements = [row for row in all_measurements if row.source == this_file["name"]]
    # Their effects on the estimates of deployments like the measured ones.
    deployments = _compared_deployments(own_measurements, hardware)
    effects = []
    for deployed, old_change, new_change in zip(
        deployments,
        changes(before, deployments, fit),
        changes(after, deployments, fit),
        strict=True,
    ):
        effect = _effect(deployed, old_change, new_change)
        if max(effect.size, effect.error_change) > LEAST_CHANGE:
            effects.append(effect)
    largest_first = sorted(effects, key=lambda effect: effect.size, reverse=True)
    # Facts that the file states.
    facts = facts_of(calibration)
    stated_facts = {}
    for name in FACTS:
        values = [str(row[name]) for row in facts if row.get(name)]
        stated_facts[name] = ", ".join(dict.fromkeys(values))  # each value once
    return Evidence(
        rows=_row_uses(calibration, after, own_measurements),
        effects=tuple(largest_first[:MOST_EFFECTS]),
        changed=len(effects),
        compared=len(deployments),
        stated=tuple(StatedFact(name, text) for name, text in stated_facts.items() if text),
        missing=tuple(name for name in ASKED if not stated_facts[name]),
    )


def _compared_deployments(
    measurements: Sequence[Measurement], hardware: UserFacts
) -> list[Deployment]:
    """Return the measured deployments, and those with a built-in profile, without duplicates."""
    # Deployments have no hash, so their text is the key.
    by_text = {str(measured.deployment): measured.deployment for measured in measurements}
    for model, gpu, tp in catalogue.profiles():
        try:
            built_in = deployment({"model": model, "gpu": gpu, "tp": tp, **LOAD}, hardware)
        except EXPECTED:
            continue
        by_text.setdefault(str(built_in), built_in)
    return list(by_text.values())


def _files(calibration: Calibration) -> tuple[list[Row], Row]:
    """Return the other benchmark files with usable rows, and this one, each {"name", "rows"}."""
    other_files = []
    files = Calibration.objects.filter(kind=Calibration.Kind.BENCHMARK).exclude(pk=calibration.pk)
    for file in files.order_by("pk"):
        rows = deployment_rows(file)
        if rows:
            name = f"{file.name} (file {file.pk})" if file.name == calibration.name else file.name
            other_files.append({"name": name, "rows": rows})
    return other_files, {"name": calibration.name, "rows": deployment_rows(calibration)}


def _row_uses(
    calibration: Calibration,
    corrections: MeasuredCorrections | None,
    measurements: Sequence[Measurement],
) -> tuple[RowUse, ...]:
    """Return for each row of a file its weight in estimates, and why it is reduced or 0.

    ``corrections`` are those of all files. ``measurements`` are the rows of this file in them.
    """
    weights = {row.row: row.weight for row in measurements}
    notes = corrections.notes if corrections else ()
    uses = []
    for number, row in enumerate(calibration_table(calibration).to_dicts(), 1):
        name = f"{calibration.name}, row {number}"
        # Notes are sentences that begin with the name of their row. The last one has the reason.
        row_notes = [note for note in notes if note.startswith((f"{name} ", f"{name}:"))]
        reason = row_notes[-1].removeprefix(name).lstrip(" :") if row_notes else ""
        if number not in weights and not reason:
            empty = {column for column, value in row.items() if value in (None, "")}
            missing = [column for column in REQUIRED_COLUMNS if column in empty]
            if empty.issuperset(MS_COLUMNS):
                missing.append("ttft or tbt")
            reason = f"it has no {', '.join(missing)}" if missing else "it cannot be compared"
        uses.append(RowUse(number, weights.get(number, 0.0), reason))
    return tuple(uses)


def _effect(deployed: Deployment, old: Change, new: Change) -> Effect:
    """Return the effect of a file on an estimate: ``old`` is without the file, ``new`` with it."""
    ttft_error_before, _ = old.ttft_error  # (median, 90th percentile)
    ttft_error, _ = new.ttft_error
    tbt_error_before, _ = old.tbt_error
    tbt_error, _ = new.tbt_error
    return Effect(
        model=deployed.shape.name,
        gpu=deployed.gpu.name,
        gpus=deployed.decode.gpus,
        concurrency=deployed.concurrency,
        isl=deployed.isl,
        osl=deployed.osl,
        ttft_factor=new.ttft / old.ttft,
        tbt_factor=new.tbt / old.tbt,
        ttft_error_before=ttft_error_before,
        ttft_error=ttft_error,
        tbt_error_before=tbt_error_before,
        tbt_error=tbt_error,
    )
