"""Laws that estimates keep, on random deployments.

    python -m bench.accuracy laws

``laws_broken`` counts, of DRAWS random deployments, those that give fewer tokens per second with
twice the GPUs in the best arrangement of both, or with half the bits. ``laws_broken_gpus`` and
``laws_broken_bits`` count each. ``laws_explained`` counts losses that the answer explains: with
4-bit experts, attention has 16 bits and not 8.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from simulation.arrays import FloatArray
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import Estimate, estimate_rows
from simulation.performance.specs import Arrangement

DRAWS, SEED, NEAR = 5_000, 20_260_101, 1e-9
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "gpt-oss-120b", "deepseek-r1")
GPUS = ("A100-80GB", "H100-SXM", "H200", "B200", "MI300X", "MI355X")
WIDER = {"bf16": "fp8", "fp8": "fp4"}  # half the bits


def figures(_: Path) -> dict[str, int]:
    """Return the figures of the module's docstring."""
    random = np.random.default_rng(SEED)
    cases = [
        Deployment(
            catalogue.shape(str(random.choice(MODELS))),
            catalogue.gpu(str(random.choice(GPUS))),
            _arrangement(int(2 ** random.integers(0, 3)), str(random.choice(list(WIDER)))),
            float(2 ** random.uniform(7, 13)),
            float(2 ** random.uniform(5, 11)),
            float(np.floor(2 ** random.uniform(0, 10))),
            str(random.choice(ENGINES)),
            decode_workers=1.0,
        )
        for _draw in range(DRAWS)
    ]
    base = _tokens(cases)
    wide = _tokens(
        [replace(c, decode=_arrangement(2 * c.decode.tp, c.decode.weights)) for c in cases]
    )
    apart = _tokens([replace(c, decode_workers=2.0) for c in cases])
    low = _tokens(
        [replace(c, decode=_arrangement(c.decode.tp, WIDER[c.decode.weights])) for c in cases]
    )
    gpus = base > np.maximum(wide, apart) * (1.0 + NEAR)
    lost = base > low * (1.0 + NEAR)
    wider = np.array([c.shape.experts > 0 and c.decode.weights == "fp8" for c in cases])
    bits = lost & ~wider
    return {
        "laws_explained": int((lost & wider).sum()),
        "laws_broken": int((gpus | bits).sum()),
        "laws_broken_gpus": int(gpus.sum()),
        "laws_broken_bits": int(bits.sum()),
    }


def _arrangement(tp: int, weights: str) -> Arrangement:
    return Arrangement(tp=tp, moe_tp=tp, weights=weights)


def _tokens(cases: list[Deployment]) -> FloatArray:
    """Return tokens/s of each deployment; 0 where it does not fit."""
    answers = estimate_rows(cases, estimate_fit().calibration, efficiencies())
    return np.array([a.tokens_per_s if isinstance(a, Estimate) else 0.0 for a in answers])
