"""``bin/manage profiles``: list, show and fit profiles, and store measurements."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.domain.options import options_in
from planner.errors import PlannerError
from planner.inputs.catalogue.hardware import gpu_known_as, model_known_as
from planner.inputs.profiles.spec import COMPUTED, KINDS, ProfileSpec
from planner.installation import COMMAND
from planner.management.base import Document, HeadroomCommand
from planner.management.help import HelpFormatter
from planner.management.options import add_options, flag_of, options_from_command_line
from planner.models import Calibration
from planner.selectors.evidence import NO_EVIDENCE, evidence_of
from planner.selectors.measured_corrections import calibration_get
from planner.selectors.profiles import KnownProfile, profile_get, profile_versions, profiles_list
from planner.services.calibrations import (
    CALIBRATION_FORMATS,
    CalibrationOptions,
    calibration_delete,
    calibration_path,
)
from planner.services.profile_fits import profile_compute, profile_fit

MOST_LINES = 10  # of reasons, and of effects, on a terminal
LIMITS = {
    "max_batch": "maximum sequences in a batch",
    "max_batch_tokens": "maximum tokens per iteration",
    "kv_capacity_tokens": "tokens of the KV cache",
}


class Command(HeadroomCommand):
    help = "List and show profiles, import one, and keep or remove measured rows."
    examples = (
        "profiles list --search llama-3.1-70b",
        "profiles import rows.csv --kind linear --name my-profile",
        "profiles keep rows.csv --engine vllm",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(
            dest="action", required=True, title="actions", prog=f"{COMMAND} profiles"
        )
        listing = self._action(actions, "list", "built-in and stored profiles")
        listing.add_argument("--search", default="", help="parts of model, GPU, kind or name")
        show = self._action(actions, "show", "one profile with its errors")
        show.add_argument("name", help="name of the profile")
        show.add_argument(
            "--version",
            dest="profile_version",
            type=int,
            help="number of the version. Default: the latest",
        )
        importing = self._action(actions, "import", "fit a profile to measurements and keep it")
        importing.add_argument(
            "file", type=Path, nargs="*", help="benchmark rows, or measured kernels"
        )
        importing.add_argument("--kind", required=True, choices=KINDS, help="kind of the profile")
        importing.add_argument("--name", help="name. Default: model, GPU and tp")
        importing.add_argument(
            "--format", default="auto", choices=CALIBRATION_FORMATS, help="format of the file"
        )
        importing.add_argument("--model", help="model of the profile. Default: that of the file")
        importing.add_argument("--gpu", help="GPU type. Default: that of the file")
        importing.add_argument(
            "--tp", type=int, help="GPUs of a replica. Default: that of the file, or 1"
        )
        importing.add_argument("--precision", default="bf16", help="precision of the weights")
        importing.add_argument("--source", default="", help="source of the measurement")
        for limit, text in LIMITS.items():
            importing.add_argument(flag_of(limit), type=int, help=text)

        keep = self._action(
            actions, "keep", "store measured rows, which correct estimates and sizes"
        )
        keep.add_argument("file", type=Path, help="measured rows")
        add_options(keep, options_in(CalibrationOptions))
        keep.add_argument("--source", default="", help="source of the measurement")

        removal = self._action(actions, "remove", "remove stored rows and their effect")
        removal.add_argument("calibration", type=int, help="number printed by profiles keep")

    def add_output(self, parser: ArgumentParser) -> None:
        """Add nothing here: each action has these options itself."""

    def _action(self, actions: _SubParsersAction[Any], name: str, help: str) -> ArgumentParser:
        """Add an action to the command, and return its parser with the options on the output."""
        parser: ArgumentParser = actions.add_parser(
            name, help=help, description=help, formatter_class=HelpFormatter
        )
        super().add_output(parser)
        return parser

    def answer(self, options: Namespace) -> Document:
        """Carry out the action, and return the profile, the profiles or the stored rows."""
        if options.action == "keep":
            return _keep(options)
        if options.action == "remove":
            removed = calibration_get(options.calibration)
            name = removed.name
            calibration_delete(calibration=removed, user=None)
            return {"removed": options.calibration, "name": name}
        if options.action == "list":
            profiles = profiles_list(options.search)
            return {"profiles": [profile_document(profile) for profile in profiles]}
        if options.action == "show":
            return _detail(profile_get(options.name, options.profile_version))
        return _import(options)

    def words(self, answer: Document) -> str:
        """Return the answer of an action as text."""
        if "calibration" in answer:
            return "\n".join(_calibration_lines(answer))
        if "removed" in answer:
            return f"{answer['name']} is removed, with its effect on estimates."
        if "profiles" in answer:
            return "\n".join(_line(profile) for profile in answer["profiles"])
        return "\n".join(_profile_lines(answer))


def _detail(profile: KnownProfile) -> Document:
    """Return a profile with its checks, its parameters and the numbers of its versions."""
    return profile_document(profile) | {
        "checks": [asdict(check) for check in profile.checks],
        "parameters": dict(profile.parameters),
        "versions": [row.version for row in profile_versions(profile.name)],
        "notes": list(profile.report.get("notes", [])),
    }


def _import(options: Namespace) -> Document:
    """Fit or compute a profile from the files of the options, and return it as JSON data."""
    reading = CalibrationOptions(
        format=options.format, model=options.model, gpu=options.gpu, tp=options.tp or 1
    )
    files = [
        calibration_path(path=path, options=reading, source=options.source) for path in options.file
    ]
    kernels = [file for file in files if file.kind == Calibration.Kind.KERNELS]
    benchmarks = [file for file in files if file.kind == Calibration.Kind.BENCHMARK]
    if len(benchmarks) > 1:
        raise PlannerError(
            "Give one file of benchmark rows at a time. Join JSON files before (cat run-*.json "
            "> runs.json), and tables under one header."
        )
    benchmark = benchmarks[0] if benchmarks else None
    if benchmark is None and options.kind not in COMPUTED:
        hint = f"; {kernels[0].name} holds measured kernels" if kernels else ""
        raise PlannerError(
            f"A {options.kind} profile is fitted to benchmark rows. Name a file{hint}."
        )
    spec = _spec(options, benchmark, tuple(kernel.pk for kernel in kernels))
    if benchmark is None:
        version = profile_compute(user=None, spec=spec)
    else:
        version = profile_fit(user=None, calibration=benchmark, spec=spec)
    return _detail(profile_get(version.profile.name, version.version))


def _keep(options: Namespace) -> Document:
    """Store a file of measurements, and return which estimates use it, as JSON data."""
    reading = CalibrationOptions(**options_from_command_line(CalibrationOptions, options))
    calibration = calibration_path(path=options.file, options=reading, source=options.source)
    evidence = NO_EVIDENCE
    if calibration.kind == Calibration.Kind.BENCHMARK:
        evidence = evidence_of(calibration)
    return {
        "calibration": calibration.pk,
        "name": calibration.name,
        "kind": calibration.kind,
        "rows": calibration.rows,
        "served": evidence.used_rows,
        "row_uses": [asdict(row) for row in evidence.rows],
        "effects": [asdict(effect) for effect in evidence.effects],
        "stated": {fact.name: fact.values for fact in evidence.stated},
        "missing": list(evidence.missing),
        "notes": list(calibration.report.get("notes", [])),
    }


def _calibration_lines(answer: Document) -> list[str]:
    """Return the lines on a stored file: rows that estimates use, why not others, and effects."""
    lines = [
        f"calibration {answer['calibration']}: {answer['rows']:,} rows of {answer['name']} "
        f"kept. Estimates and sizes use {answer['served']:,}"
    ]
    with_reason = [row for row in answer["row_uses"] if row["reason"]]
    for row in with_reason[:MOST_LINES]:
        lines.append(f"  row {row['row']}, weight {row['weight']:.0%}: {row['reason']}")
    for effect in answer["effects"][:MOST_LINES]:
        lines.append(
            f"  {effect['model']} on {effect['gpus']} x {effect['gpu']}, "
            f"{effect['concurrency']:g} in flight: "
            f"TTFT x {effect['ttft_factor']:.2f}, TPOT x {effect['tbt_factor']:.2f}"
        )
    if answer["missing"]:
        options = ", ".join(map(flag_of, answer["missing"]))
        lines.append(f"  Assumed, since the file does not state them. Give {options}.")
    return lines


def profile_document(known: KnownProfile) -> Document:
    """Return a profile as a row of a list; ``error`` is that of the check that states its error."""
    phases = {}
    for phase in known.phases:
        error = phase.error.mape if phase.error else None
        phases[phase.name] = {"kind": phase.kind, "error": error, "most": phase.most}
    check = known.stated_check
    return {
        "name": known.name,
        "version": known.version,
        "kind": known.kind,
        "model": known.model,
        "gpu": known.gpu,
        "tp": known.tp,
        "error": check.mape if check else None,
        "basis": f"{check.quantity}, {check.against}" if check else None,
        "provenance": known.profile.provenance.kind,
        "source": known.profile.provenance.source,
        "phases": phases,
    }


def _spec(
    options: Namespace, benchmark: Calibration | None, kernels: tuple[int, ...]
) -> ProfileSpec:
    """Return the profile to create from the options and from the file of benchmark rows.

    An arrangement is a model on a number of GPUs of one type. Raises PlannerError unless exactly
    one arrangement in the file matches the options. ``kernels`` are the ids of measured kernels.
    """
    given = {}
    for key in ("model", "gpu", "tp"):
        if getattr(options, key):
            given[key] = getattr(options, key)
    arrangement = _arrangement(benchmark, given) if benchmark is not None else {}
    rows_model, rows_gpu = arrangement.get("model") or "", arrangement.get("gpu") or ""
    model = given.get("model") or model_known_as(rows_model)
    gpu = given.get("gpu") or gpu_known_as(rows_gpu)
    tp = int(given.get("tp") or arrangement.get("tp") or 1)
    for option, value in (("model", model), ("gpu", gpu)):
        if not value:
            raise PlannerError(f"--{option} is missing. Name it.")
    return ProfileSpec(
        name=options.name or f"{model} {gpu} tp{tp}".replace("/", "-"),
        kind=options.kind,
        model=model,
        gpu=gpu,
        tp=tp,
        rows_model=rows_model,
        rows_gpu=rows_gpu,
        precision=options.precision,
        kernels=kernels,
        **{limit: getattr(options, limit) for limit in LIMITS},
    )


def _arrangement(benchmark: Calibration, given: Document) -> Document:
    """Return the only arrangement in a file that has the model, gpu and tp in ``given``.

    Raises PlannerError if none or several match.
    """
    arrangements: list[Document] = benchmark.report["arrangements"]
    matching = [arrangement for arrangement in arrangements if _matches(arrangement, given)]
    if len(matching) == 1:
        return matching[0]
    names = "; ".join(
        f"{row['model'] or 'no model'} on {row['tp'] or '?'} x {row['gpu'] or 'no GPU'}"
        for row in arrangements[:10]
    )
    raise PlannerError(
        f"{benchmark.name} has {len(arrangements)} arrangements. {len(matching)} match --model, "
        f"--gpu and --tp. Choose one of: {names}."
    )


def _matches(arrangement: Document, given: Document) -> bool:
    """Return whether an arrangement in a file has the model, gpu and tp in ``given``.

    A value that is missing on either side matches any.
    """
    for key, catalogue_name in (("model", model_known_as), ("gpu", gpu_known_as)):
        in_file = arrangement[key]
        if key in given and in_file and given[key] not in (in_file, catalogue_name(in_file)):
            return False
    return "tp" not in given or arrangement["tp"] in (None, given["tp"])


def _profile_lines(answer: Document) -> list[str]:
    """Return the lines on one profile: its source, parameters, errors and notes."""
    lines = [_line(answer), f"  {answer['provenance']}: {answer['source']}"]
    for name, parameter in answer["parameters"].items():
        line = f"  {name} {parameter['value']:.5g} {parameter['unit']}"
        if parameter["low"] is not None:
            line += f" ({parameter['low']:.5g} to {parameter['high']:.5g})"
        lines.append(line)
    for check in answer["checks"]:
        lines.append(
            f"  {check['quantity']}: MAPE {check['mape']:.1%}, median {check['median']:.1%}, "
            f"p95 {check['p95']:.1%}, bias {check['bias']:+.1%} of {check['rows']:,} rows "
            f"({check['against']})"
        )
    return lines + [f"  {note}" for note in answer["notes"]]


def _line(row: Document) -> str:
    """Return a profile with its error in one line."""
    name = f"{row['name']} version {row['version']}" if row["version"] else row["name"]
    error = "not checked" if row["error"] is None else f"error {row['error']:.1%} ({row['basis']})"
    return f"{name}: {row['kind']}, {row['model']} on {row['tp']} x {row['gpu']}, {error}"
