"""Fit the built-in linear profiles (methods.md C1) and write planner/catalogue/profiles.yaml.

    python -m bench.fit_profiles [--data DIR] [--check]

Prints every fit with its error. ``--check`` writes nothing and exits 1 when the file is not what
the data give. The measured rows stay where they are: only parameters and errors are written.

What was not measured as it stands is carried over from what was, by a rule stated in its source and
with the error of that rule where both sides were measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from ruamel.yaml import YAML

from bench.profile_rows import CHUNK, Line, Profile, mape, mlenergy, sageserve, silicon, splitwise

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data"
TARGET = ROOT / "planner/catalogue/profiles.yaml"

MAX_BATCH = 256
LIMITS_SOURCE = (
    "vLLM V1 API-server defaults on A100-class GPUs (vllm/engine/arg_utils.py: "
    "max_num_batched_tokens 2048, max_num_seqs 256), used for H100 too, where its own are larger"
)
CHECKED = "; error: the same rule where both GPUs were measured, mean over arrangements"


def ratios(data: Path) -> tuple[float, float]:
    """Memory bandwidth and bf16 peak of an H100 SXM over those of an A100 SXM."""
    specs = pl.read_csv(data / "profiles/gpu_specs.csv")
    a100, h100 = (
        specs.row(by_predicate=pl.col("system") == s, named=True) for s in ("a100_sxm", "h100_sxm")
    )
    return tuple(h100[key] / a100[key] for key in ("mem_bw_bytes_s", "bf16_flops"))


def slower(line: Line, base: float, slope: float, source: str) -> Line:
    return Line(line.base_s * base, line.slope_s * slope, "modelled", source, line.sizes)


def to_a100(profile: Profile, data: Path) -> Profile:
    """An H100 profile on A100: what reads memory by the bandwidths, prefill tokens by the FLOPs."""
    bandwidth, flops = ratios(data)
    of = f"{profile.model} on {profile.tp} x H100-SXM"
    by_memory = f"ITL of {of}, times {bandwidth:.2f}, the ratio of memory bandwidths"
    by_flops = f"prefill of {of}, tokens times {flops:.2f}, the ratio of bf16 peaks"
    return Profile(
        profile.model,
        "A100-80GB",
        profile.tp,
        slower(profile.decode, bandwidth, bandwidth, by_memory),
        slower(profile.prefill, bandwidth, flops, by_flops),
    )


def transfer_errors(profiles: list[Profile], data: Path) -> dict[str, list[tuple[int, float]]]:
    """Rows and error of ``to_a100`` by half, for each arrangement measured on both GPUs."""
    on = {(p.model, p.gpu, p.tp): p for p in profiles}
    errors: dict[str, list[tuple[int, float]]] = {"decode": [], "prefill": []}
    for (model, gpu, tp), profile in on.items():
        real = on.get((model, "A100-80GB", tp))
        if gpu != "H100-SXM" or real is None:
            continue
        guess = to_a100(profile, data)
        for half, (line, rows) in {
            "decode": (guess.decode, real.decode),
            "prefill": (guess.prefill, real.prefill),
        }.items():
            errors[half].append((rows.rows, mape(line.at(rows.sizes), rows.seconds)))
    return errors


def carried_over(profiles: list[Profile], data: Path) -> Iterator[Profile]:
    """Profiles that were not measured as they stand, each from one that was."""
    on = {(p.model, p.gpu, p.tp): p for p in profiles}
    errors = transfer_errors(profiles, data)

    def checked(line: Line, half: str) -> Line:
        rows, error = zip(*errors[half], strict=True)
        return replace(
            line, source=line.source + CHECKED, rows=sum(rows), mape=sum(error) / len(error)
        )

    small = to_a100(on["llama-3.1-8b", "H100-SXM", 1], data)
    yield replace(
        small, decode=checked(small.decode, "decode"), prefill=checked(small.prefill, "prefill")
    )

    def of_llama_2(gpu: str) -> Line:
        twin = on["llama-2-70b", gpu, 4].prefill
        source = f"prefill of llama-2-70b on 4 x {gpu}, whose layers have the same shape"
        return Line(twin.base_s, twin.slope_s, "modelled", source, twin.sizes)

    itl = mlenergy(data, MAX_BATCH)
    large = Profile("llama-3.1-70b", "H100-SXM", 4, itl, of_llama_2("H100-SXM"))
    yield large
    itl_a100 = checked(to_a100(large, data).decode, "decode")
    yield replace(large, gpu="A100-80GB", decode=itl_a100, prefill=of_llama_2("A100-80GB"))


def fit_all(data: Path = DATA) -> list[Profile]:
    """Every built-in profile, by model, GPU and TP."""
    measured = [*splitwise(data), *sageserve(data), *silicon(data)]
    everything = [*measured, *carried_over(measured, data)]
    return sorted(everything, key=lambda p: (p.model, p.gpu, p.tp))


def rounded(value: float | None, digits: int = 5) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


def as_document(profiles: list[Profile]) -> dict[str, Any]:
    """The YAML document: parameters in ms, errors as fractions."""

    def half(line: Line) -> dict[str, Any]:
        return {
            "kind": line.kind,
            "source": line.source,
            "rows": line.rows,
            "r2": rounded(line.r2, 4),
            "mape": rounded(line.mape, 3),
            "lowest": rounded(float(line.sizes.min()), 4),
            "highest": rounded(float(line.sizes.max()), 4),
            "beyond_bias": rounded(line.beyond_bias, 3),
        }

    return {
        "limits": {
            "max_batch": MAX_BATCH,
            "max_batch_tokens": CHUNK,
            "kind": "assumed",
            "source": LIMITS_SOURCE,
        },
        "profiles": [
            {
                "model": p.model,
                "gpu": p.gpu,
                "tp": p.tp,
                "kind": p.kind,
                "source": p.decode.source
                if p.decode.source == p.prefill.source
                else f"ITL: {p.decode.source}. Prefill: {p.prefill.source}",
                "alpha_ms": rounded(p.decode.base_s * 1e3),
                "beta_ms": rounded(p.decode.slope_s * 1e3),
                "gamma_ms": rounded(p.prefill.base_s * 1e3),
                "delta_ms": rounded(p.prefill.slope_s * 1e3),
                "decode": half(p.decode),
                "prefill": half(p.prefill),
            }
            for p in profiles
        ],
    }


def table(profiles: list[Profile]) -> str:
    head = ("profile", "half", "kind", "base ms", "slope us", "R2", "MAPE", "n", "range", "beyond")
    row = "{:<28} {:<8} {:<9} {:>8} {:>9} {:>7} {:>7} {:>5} {:>12} {:>8}"
    lines = [row.format(*head)]
    for p in profiles:
        for name, line in (("decode", p.decode), ("prefill", p.prefill)):
            lines.append(
                row.format(
                    f"{p.model} {p.gpu} x{p.tp}",
                    name,
                    line.kind,
                    f"{line.base_s * 1e3:.2f}",
                    f"{line.slope_s * 1e6:.1f}",
                    "-" if line.r2 is None else f"{line.r2:.4f}",
                    "-" if line.mape is None else f"{line.mape:.2%}",
                    line.rows,
                    f"{line.sizes.min():.0f}-{line.sizes.max():.0f}",
                    "-" if line.beyond_bias is None else f"{line.beyond_bias:+.0%}",
                )
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.fit_profiles", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"There is no data folder {options.data}: give --data DIR.", file=sys.stderr)
        return 2
    profiles = fit_all(options.data)
    print(table(profiles))
    yaml = YAML()
    yaml.width = 100
    document = as_document(profiles)
    if options.check:
        same = YAML(typ="safe").load(TARGET.read_text()) == document
        print(f"{TARGET.name} is {'what' if same else 'NOT what'} the data give.")
        return 0 if same else 1
    with TARGET.open("w") as file:
        file.write(
            "# Written by bench/fit_profiles.py from measured rows; fit again, do not edit.\n"
        )
        yaml.dump(document, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
