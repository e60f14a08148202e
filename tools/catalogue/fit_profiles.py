"""Fit the built-in linear profiles (methods.md C1) and write the catalogue's profiles.yaml.

    python -m tools.catalogue.fit_profiles [--data DIR] [--check]

It prints every fit with its errors. ``--check`` writes nothing and exits with 1 if the file differs
from the fits. The file holds only parameters, their confidence intervals and errors, not the
measured rows.

Profiles without measurements are derived from measured ones by a rule. Their source states the
rule, and its error where both sides were measured.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ruamel.yaml import YAML

from planner.inputs.catalogue import gpus, models
from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.performance.fitting.compare import (
    FITTED,
    QUANTITIES,
    TBT,
    checks_of,
    compare_with,
    concatenate_residuals,
)
from simulation.performance.fitting.fit import Fitter
from simulation.performance.fitting.fit_linear import Parameter, configurations, least_squares
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, EngineSettings, Provenance
from tools.catalogue.profile_rows import (
    MLENERGY,
    Key,
    MeasuredRows,
    mlenergy,
    sageserve,
    silicon,
    splitwise,
)

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data"
TARGET = ROOT / "planner/inputs/catalogue/profiles.yaml"

MAX_BATCH, CHUNK = 256, 2048
LIMITS_SOURCE = (
    "vLLM defaults for A100-class GPUs (max_num_batched_tokens 2048, max_num_seqs 256), lower than "
    "those for H100"
)
RULE = "deployments measured on A100 and H100 (A100 scaled from H100)"
MOST = 105  # rows per arrangement and quantity in the check of a rule, so that none dominates
HERE = Provenance("measured", "tools.catalogue.fit_profiles")


@dataclass(frozen=True)
class Built:
    """One profile of the catalogue; ``intervals`` are None for parameters that were not fitted."""

    profile: LinearProfile
    decode: Provenance
    prefill: Provenance
    intervals: tuple[tuple[float, float] | None, ...]  # of alpha, beta, gamma, delta, in seconds

    @property
    def key(self) -> Key:
        """Return model, GPU type and number of GPUs."""
        return self.profile.model, self.profile.gpu, self.profile.tp

    @property
    def modelled(self) -> bool:
        """Return whether a part of the profile is not measured."""
        return self.provenance.kind == "modelled"

    @property
    def provenance(self) -> Provenance:
        """Return the source of the whole profile; it is modelled if only one half was measured."""
        if self.decode == self.prefill:
            return self.decode
        same = self.decode.kind == self.prefill.kind
        source = f"Decode: {self.decode.source}. Prefill: {self.prefill.source}"
        return Provenance(self.decode.kind if same else "modelled", source)


def modelled_spread(profile: LinearProfile) -> float:
    """Return the expected error of a roofline of the same model and GPUs; 0 without a shape.

    Modelled parts of a profile are at most as certain as that.
    """
    shape, gpu = models()[profile.model].shape, gpus()[profile.gpu]
    if shape is None:
        return 0.0
    limits = EngineSettings(MAX_BATCH, CHUNK, 1)
    roofline = roofline_profile(shape, gpu, Arrangement(tp=profile.tp), efficiencies(), limits)
    return roofline.spread


def interval(parameter: Parameter) -> tuple[float, float] | None:
    """Return the confidence interval of a parameter; None if it was not fitted."""
    return (parameter.low, parameter.high) if np.isfinite(parameter.high) else None


def fit_profile(measured: MeasuredRows) -> Built:
    """Fit a profile to its own rows.

    A prefill that was measured only together with decodes counts as modelled.
    """
    fitter = Fitter(
        "linear",
        max_batch=MAX_BATCH,
        max_batch_tokens=CHUNK,
        kv_capacity_tokens=1,
        provenance=HERE,
    )
    profile_fit = fitter.fit(measured.rows)
    assert isinstance(profile_fit.profile, LinearProfile)
    return Built(
        profile_fit.profile,
        Provenance("measured", measured.decode),
        Provenance("modelled" if profile_fit.notes else "measured", measured.prefill),
        tuple(map(interval, profile_fit.parameters)),
    )


def ratios(data: Path) -> tuple[float, float]:
    """Return the memory bandwidth and bf16 peak of an H100 SXM divided by those of an A100 SXM."""
    specs = pl.read_csv(data / "profiles/gpu_specs.csv")
    a100, h100 = (
        specs.row(by_predicate=pl.col("system") == system, named=True)
        for system in ("a100_sxm", "h100_sxm")
    )
    bandwidth, flops = (h100[key] / a100[key] for key in ("mem_bw_bytes_s", "bf16_flops"))
    return bandwidth, flops


def to_a100(built: Built, data: Path) -> Built:
    """Scale an H100 profile to A100: prefill tokens by the FLOP/s, the rest by memory bandwidth."""
    bandwidth, flops = ratios(data)
    h100 = built.profile
    of = f"{h100.model} on {h100.tp} x H100-SXM"
    return Built(
        replace(
            h100,
            gpu="A100-80GB",
            alpha_s=h100.alpha_s * bandwidth,
            beta_s=h100.beta_s * bandwidth,
            gamma_s=h100.gamma_s * bandwidth,
            delta_s=h100.delta_s * flops,
            checks=(),
        ),
        Provenance("modelled", f"TPOT of {of}, times {bandwidth:.2f} (less memory bandwidth)"),
        Provenance("modelled", f"time per token of {of}, times {flops:.2f} (lower bf16 peak)"),
        (None,) * 4,
    )


def rule_checks(
    built: Sequence[Built], measured: Sequence[MeasuredRows], data: Path
) -> tuple[Check, ...]:
    """Check ``to_a100`` with the A100 rows of every arrangement that was measured on both GPUs."""
    by_key = {each.key: each for each in built}
    parts = []
    for of_a100 in measured:
        model, gpu, tp = of_a100.key
        on_h100 = by_key.get((model, "H100-SXM", tp))
        if on_h100 is None or gpu != "A100-80GB":
            continue
        residuals = compare_with(to_a100(on_h100, data).profile, of_a100.rows)
        for quantity in QUANTITIES:
            part = residuals.of(quantity)
            if part.row.size > MOST:
                part = part.take(np.linspace(0, part.row.size - 1, MOST).astype(int))
            parts.append(part)
    return checks_of(concatenate_residuals(parts), RULE)


def carried_over(built: Sequence[Built], rule: tuple[Check, ...], data: Path) -> Iterator[Built]:
    """Yield the profiles that were not measured, each derived from a measured one.

    ``rule`` are the checks of ``to_a100``. These are Llama-3.1-8B on A100, and Llama-3.1-70B on
    both GPU types: its decodes from ML.ENERGY's rows, its prefill from Llama-2-70B.
    """
    by_key = {each.key: each for each in built}
    small = to_a100(by_key["llama-3.1-8b", "H100-SXM", 1], data)
    yield replace(small, profile=replace(small.profile, checks=rule))

    rows = mlenergy(data, MAX_BATCH)
    design = np.column_stack([np.ones(rows.rows), rows.batch])
    line = least_squares(design, rows.tbt_s, configurations(rows))
    (alpha, beta), most = line.values.tolist(), float(rows.batch.max())
    for gpu in ("H100-SXM", "A100-80GB"):
        twin = by_key["llama-2-70b", gpu, 4].profile
        large = Built(
            replace(
                twin, model="llama-3.1-70b", gpu="H100-SXM", alpha_s=alpha, beta_s=beta,
                fitted_decodes=most, fitted_context=np.inf, checks=(),
            ),
            Provenance("measured", MLENERGY),
            Provenance(
                "modelled", f"as llama-2-70b on 4 x {gpu} (same layer shape)"
            ),
            (*zip(line.low.tolist(), line.high.tolist(), strict=True), None, None),
        )  # fmt: skip
        if gpu == "H100-SXM":
            checks = checks_of(compare_with(large.profile, rows), FITTED)
            yield replace(large, profile=replace(large.profile, checks=checks))
            continue
        moved = to_a100(large, data)
        yield replace(
            moved,
            prefill=large.prefill,
            profile=replace(
                moved.profile, gamma_s=twin.gamma_s, delta_s=twin.delta_s,
                checks=tuple(c for c in rule if c.quantity == TBT),
            ),
        )  # fmt: skip


def fit_all(data: Path = DATA) -> list[Built]:
    """Return every built-in profile, sorted by model, GPU and TP."""
    measured = [*splitwise(data), *sageserve(data), *silicon(data)]
    from_rows = []
    for each in measured:
        model, gpu, _ = each.key
        count = each.rows.rows
        rows = replace(each.rows, model=np.full(count, model), gpu=np.full(count, gpu))
        from_rows.append(fit_profile(replace(each, rows=rows)))
    rule = rule_checks(from_rows, measured, data)
    return sorted([*from_rows, *carried_over(from_rows, rule, data)], key=lambda each: each.key)


def round_to_digits(value: float, digits: int = 5) -> float:
    """Return ``value`` rounded to ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")


def as_document(built: Sequence[Built]) -> dict[str, Any]:
    """Return the YAML document, with parameters in ms and errors as fractions."""

    def entry(b: Built) -> dict[str, Any]:
        p = b.profile
        parameters = {
            "alpha_ms": p.alpha_s,
            "beta_ms": p.beta_s,
            "gamma_ms": p.gamma_s,
            "delta_ms": p.delta_s,
        }
        intervals = zip(parameters, b.intervals, strict=True)
        return {
            "model": p.model,
            "gpu": p.gpu,
            "tp": p.tp,
            **asdict(b.provenance),
            **{name: round_to_digits(value * 1e3) for name, value in parameters.items()},
            "intervals": {
                name: [round_to_digits(end * 1e3, 4) for end in ends]
                for name, ends in intervals
                if ends
            },
            "fitted_decodes": round_to_digits(p.fitted_decodes),
            "fitted_prefill_tokens": round_to_digits(p.fitted_prefill_tokens),
            **(
                {"fitted_context": round_to_digits(p.fitted_context)}
                if isfinite(p.fitted_context)
                else {}
            ),
            "decode": asdict(b.decode),
            "prefill": asdict(b.prefill),
            **({"spread": round_to_digits(modelled_spread(p), 3)} if b.modelled else {}),
            "checks": [
                {
                    k: round_to_digits(v, 3) if isinstance(v, float) else v
                    for k, v in asdict(c).items()
                }
                for c in p.checks
            ],
        }

    limits = {"max_batch": MAX_BATCH, "max_batch_tokens": CHUNK}
    source = {"kind": "assumed", "source": LIMITS_SOURCE}
    return {"limits": limits | source, "profiles": [entry(b) for b in built]}


def table(built: Sequence[Built]) -> str:
    """Return the errors of all profiles as lines of a terminal."""
    row = "{:<28} {:<18} {:>5} {:>7} {:>7} {:>7} {:>7}  {}"
    lines = [row.format("profile", "quantity", "n", "MAPE", "median", "p95", "bias", "against")]
    for b in built:
        for c in b.profile.checks:
            errors = (f"{v:.1%}" for v in (c.mape, c.median, c.p95, c.bias))
            name = "{} {} x{}".format(*b.key)
            lines.append(row.format(name, c.quantity, c.rows, *errors, c.against))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.catalogue.fit_profiles", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"There is no data folder {options.data}: give --data DIR.", file=sys.stderr)
        return 2
    built = fit_all(options.data)
    print(table(built))
    yaml = YAML()
    yaml.width = 100
    document = as_document(built)
    if options.check:
        same = YAML(typ="safe").load(TARGET.read_text()) == document
        print(f"{TARGET.name} is {'what' if same else 'NOT what'} the data give.")
        return 0 if same else 1
    with TARGET.open("w") as file:
        file.write(
            "# Written by tools/catalogue/fit_profiles.py from measured rows; do not edit.\n"
        )
        yaml.dump(document, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
