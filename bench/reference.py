"""The scenarios of an independent simulator (splitwise-sim), as fleets and traces of ours.

Its rules are in ``../shared/reference/README.md``; the rows there are its answers, one per request.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet, KvLink, Pool, Region, Routing, Tier
from simulation.performance.adjusted_profile import AdjustedProfile
from simulation.performance.curves import Curve, Part, grid
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec, Provenance
from simulation.trace import Trace

SHARED = Path(__file__).parents[1] / "../shared"
SOURCE = Provenance("measured", "splitwise-sim data/perf_model.csv @ 8f99e7d (MIT)")
MODEL, GPU, TP = "llama2-70b", "h100-80gb", 8
KV_BYTES_PER_TOKEN = 2 * 2 * 80 * 8192  # no grouped-query saving
KV_TOKENS = int((8 * 80e9 - 135e9) // KV_BYTES_PER_TOKEN)
MIXED = 1.1
DEFAULT, PENDING = Routing(), Routing(instance="least-pending", decode="least-memory")


def rows(scenario: str) -> pl.DataFrame:
    """Return the per-request results of a scenario, in order of arrival."""
    return pl.read_csv(shared_file(f"reference/splitwise_sim_{scenario}.csv.gz"))


def splitwise_curve() -> Curve:
    """Return the medians by batch tokens as a curve, linear between and beyond them."""
    table = (
        pl.read_csv(shared_file("data/profiles/splitwise_perf_model.csv"))
        .filter(model=MODEL, hardware=GPU, tensor_parallel=TP)
        .with_columns(tokens=pl.col("prompt_size") * pl.col("batch_size"))
        .group_by("tokens")
        .agg(pl.col("prompt_time", "token_time").median() / 1000)
        .sort("tokens")
    )
    parts = [_line(table["tokens"], table[name]) for name in ("token_time", "prompt_time")]
    return grid(decode=parts[0], prefill=parts[1], mixed=MIXED)


def splitwise_profile(max_batch: int = 512, max_batch_tokens: int = 2048) -> AdjustedProfile:
    """Return the profile of Llama-2-70B in fp16 on eight H100."""
    return AdjustedProfile(
        kind="table",
        model=MODEL,
        gpu=GPU,
        tp=TP,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        kv_capacity_tokens=KV_TOKENS,
        provenance=SOURCE,
        curve=splitwise_curve(),
    )


def trace(arrival_s: FloatArray, isl: FloatArray, osl: FloatArray) -> Trace:
    """Return requests of one model, region and tier."""
    codes = np.zeros(len(arrival_s), np.int16)
    return Trace(
        arrival_s=np.asarray(arrival_s, np.float64),
        input_tokens=np.asarray(isl, np.int32),
        output_tokens=np.asarray(osl, np.int32),
        model=codes,
        region=codes,
        tier=codes,
        models=(MODEL,),
        regions=("r",),
        tiers=("t",),
        start_s=0.0,
        provenance="splitwise-sim",
    )


def fleet(*pools: Pool, routing: Routing = DEFAULT) -> Fleet:
    """Return a fleet of pools in one region."""
    return Fleet(
        tiers=(Tier("t"),),
        regions=(Region("r", 400.0, 1.2),),
        pools=pools,
        latency_s=np.zeros((1, 1)),
        routing=routing,
    )


def pool(instances: int, profile: Profile | None = None, **how: Any) -> Pool:
    """Return a pool of identical instances, by default of the reference's profile."""
    gpu = GpuSpec(GPU, 80e9, 0.0, 0.0, 0.0, SOURCE)
    served = profile or splitwise_profile()
    return Pool(MODEL, "r", served, gpu, instances, instances, instances, 0.0, 0.0, **how)


def as_splitwise(scenario: str) -> Fleet:
    """Return the fleet of a scenario under the simulator's own rules, as far as ours allow.

    Two differences stay. Decodes that do not all fit beside prompts pause together (theirs: only
    those that do not fit), which explains all of the difference on mixed instances. A decode
    instance is chosen when the KV cache arrives (theirs: on arrival, by the final KV cache).
    """
    if scenario.startswith("mixed"):
        return fleet(pool(40, batching="whole"), routing=PENDING)
    link = KvLink(KV_BYTES_PER_TOKEN, 200 * 2.0**30)
    prefill = pool(25, role="prefill", batching="whole", link=link)
    return fleet(prefill, pool(15, role="decode", batching="whole"), routing=PENDING)


def _line(tokens: pl.Series, seconds: pl.Series) -> Part:
    """Return a part of a curve with an added knot at one token.

    A curve is flat before its first knot, and the source extends the line.
    """
    x, y = tokens.to_numpy().astype(float), seconds.to_numpy()
    first = y[0] - (x[0] - 1.0) * (y[1] - y[0]) / (x[1] - x[0])
    return Part(np.r_[1.0, x], np.zeros(1), np.r_[first, y][:, None])


def shared_file(name: str) -> Path:
    """Return the path of a file in the shared folder; raise SimulationError if it is absent."""
    path = SHARED / name
    if not path.exists():
        raise SimulationError(f"The reference file ../shared/{name} is absent.")
    return path
