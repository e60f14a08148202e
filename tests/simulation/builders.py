"""Small fleets and traces for the tests."""

import numpy as np

from simulation.fleet import Fleet, Pool, Region, Routing, Tier
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import GpuSpec, Provenance
from simulation.trace import PrefixBlocks, Trace

SOURCE = Provenance("assumed", "test")
GPU = GpuSpec("gpu", 80e9, 100.0, 600.0, 400.0, SOURCE)
TIER = Tier("t")


def profile(
    alpha=1 / 32,
    beta=1 / 1024,
    gamma=1 / 16,
    delta=1 / 4096,
    max_batch=8,
    budget=64,
    kv=1024,
    tp=1,
):
    """Binary fractions throughout, so that times are exact and ties are real."""
    return LinearProfile("m", "gpu", tp, alpha, beta, gamma, delta, max_batch, budget, kv, SOURCE)


def linear_seconds(prof, decodes, tokens):
    """Seconds of an iteration of a linear profile, by C1's formula."""
    base = max(prof.alpha_s if decodes > 0 else 0.0, prof.gamma_s if tokens > 0 else 0.0)
    return base + prof.beta_s * decodes + prof.delta_s * tokens


# Iterations of a second: four requests at a time, and one.
SLOW = profile(alpha=1.0, beta=0.0, gamma=1.0, delta=0.0, kv=1000, max_batch=4, budget=1000)
SLOW_ALONE = profile(alpha=1.0, beta=0.0, gamma=1.0, delta=0.0, kv=1000, max_batch=1, budget=1000)


def pool(
    prof=None,
    *,
    model="m",
    region="r",
    initial=1,
    minimum=0,
    maximum=64,
    startup_s=10.0,
    usd=2.0,
    max_context=None,
    **how,
):
    return Pool(
        model,
        region,
        prof or profile(),
        GPU,
        initial,
        minimum,
        maximum,
        startup_s,
        usd,
        max_context,
        **how,
    )


def fleet(*pools, tiers=(TIER,), regions=("r",), latency=None, routing=None, **how):
    return Fleet(
        tiers=tuple(tiers),
        regions=tuple(Region(name, 400.0, 1.25) for name in regions),
        pools=pools or (pool(),),
        latency_s=np.zeros((len(regions),) * 2) if latency is None else np.array(latency, float),
        routing=routing or Routing(),
        **how,
    )


def trace(
    arrival,
    isl,
    osl,
    *,
    model=0,
    region=0,
    tier=0,
    models=("m",),
    regions=("r",),
    tiers=("t",),
    blocks=None,
):
    """``blocks``: per request the ids of its prompt's blocks, and their size in tokens."""
    n = len(arrival)
    if blocks is not None:
        lists, size = blocks
        start = np.cumsum([0, *(len(ids) for ids in lists)])
        blocks = PrefixBlocks(start, np.array([i for ids in lists for i in ids], np.int32), size)

    def column(value, kind):
        return np.broadcast_to(np.asarray(value, kind), (n,)).copy()

    return Trace(
        arrival_s=np.asarray(arrival, np.float64),
        input_tokens=column(isl, np.int32),
        output_tokens=column(osl, np.int32),
        model=column(model, np.int16),
        region=column(region, np.int16),
        tier=column(tier, np.int16),
        models=models,
        regions=regions,
        tiers=tiers,
        start_s=0.0,
        provenance="synthesised for a test",
        blocks=blocks,
    )
