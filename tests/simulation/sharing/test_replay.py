"""Several models on one GPU: laws of the replay."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.policies.static import Static
from simulation.sharing.replay import SharedHost, SharingModel, fits_by_memory, replay_gpu
from tests.simulation.builders import fleet, pool, profile, trace

HOST = SharedHost(
    host_bytes=1e12, host_bytes_s=50e9, disk_bytes_s=5e9, switch_s=0.1, by_memory=True
)
TIME = replace(HOST, by_memory=False)
OVERLAP = replace(TIME, overlap=True)
SEEDS = range(12)


def speed(**how):
    return profile(kv=how.pop("kv", 4000), **how)


def model(rng, requests=120, rate=0.2, *, prof=None, weights=14e9, ttft=2.0, tbt=0.1):
    """Poisson requests of one tier."""
    isl, osl = rng.integers(1, 400, requests), rng.integers(1, 60, requests)
    ones = np.ones(requests)
    return SharingModel(
        "m", prof or speed(), weights, 1e7, np.cumsum(rng.exponential(1 / rate, requests)), isl,
        isl, osl, ttft * ones, tbt * ones, np.inf * ones, np.zeros(requests, np.int64), (0.95,),
    )  # fmt: skip


def some(seed, count=4, **how):
    rng = np.random.default_rng(seed)
    return [model(rng, **how) for _ in range(count)]


@pytest.mark.parametrize("host", [HOST, TIME])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_model_alone_is_a_replica_of_its_own(seed, host):
    rng = np.random.default_rng(seed)
    alone = model(rng, rate=float(rng.choice([0.1, 0.5, 2.0])), prof=speed(kv=100_000))
    # The first load comes before the first request, so only later requests are alike.
    shared = replay_gpu([alone], replace(host, switch_s=0.0, host_bytes_s=np.inf)).models[0]
    requests = trace(alone.arrival_s, alone.input_tokens, alone.output_tokens)
    dedicated = simulate(
        requests, fleet(pool(speed(kv=100_000))), Static(np.array([1])), seed=0,
        duration_s=float(alone.arrival_s[-1] + 1000),
    ).requests  # fmt: skip
    assert shared.first_s == pytest.approx(dedicated.first_token_s)
    assert shared.end_s == pytest.approx(dedicated.last_token_s)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "host", [HOST, TIME, OVERLAP, replace(TIME, host_bytes=20e9), replace(OVERLAP, host_bytes=20e9)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_is_counted_once(seed, host, whole):
    rng = np.random.default_rng(seed)
    kv, rate = int(rng.integers(300, 6000)), float(rng.choice([0.05, 0.5]))
    models = some(seed, 3, rate=rate, prof=speed(kv=kv))
    replayed = replay_gpu(models, replace(host, whole_requests=whole))
    for own, result in zip(models, replayed.models, strict=True):
        assert len(own) == result.completed + result.rejected + result.unfinished
        done = np.isfinite(result.end_s)
        assert (result.first_s[done] > own.arrival_s[done]).all()
        assert (result.end_s[done] >= result.first_s[done]).all()
        assert result.unfinished == 0  # the replay goes on to the last token
        slow = (result.first_s - own.arrival_s > own.ttft_s) | ~done
        assert (result.late | ~slow).all()
    spent = sum(result.busy_s + result.load_s for result in replayed.models)
    assert spent <= replayed.end_s + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_without_memory_are_rejected(seed):
    own = model(np.random.default_rng(seed), prof=speed(kv=200))
    result = replay_gpu([own], TIME).models[0]
    assert result.rejected == int((own.input_tokens + own.output_tokens > 200).sum())
    assert result.late[~np.isfinite(result.end_s)].all()


def test_slower_loads_delay_more_requests():
    late = [0, 0, 0]
    for seed in SEEDS:
        models = some(seed, rate=0.03)
        free = replay_gpu(models, replace(TIME, switch_s=0.0, host_bytes_s=np.inf))
        assert sum(one.load_s for one in free.models) == 0
        runs = free, replay_gpu(models, TIME), replay_gpu(models, replace(TIME, host_bytes=0.0))
        late = [
            n + sum(int(m.late.sum()) for m in run.models)
            for n, run in zip(late, runs, strict=True)
        ]
    assert late == sorted(late)


def of_one_request(arrival_s, osl):
    ones, count = np.ones(1), np.array([1])
    return SharingModel(
        "m", speed(kv=4000), 14e9, 1e7, arrival_s * ones, count, count, osl * count, np.inf * ones,
        np.inf * ones, np.inf * ones, 0 * count, (0.95,),
    )  # fmt: skip


def test_a_model_computes_while_the_next_one_loads():
    """Weights of 14 GB load in 0.38 s. The first model decodes for longer than that."""
    first, second = of_one_request(0.0, 100), of_one_request(1.0, 100)
    load_s = TIME.switch_s + 14e9 / TIME.host_bytes_s
    apart, together = (replay_gpu([first, second], host) for host in (TIME, OVERLAP))
    assert sum(model.load_s for model in apart.models) == pytest.approx(2 * load_s)
    assert together.models[0].load_s == pytest.approx(load_s)  # nothing runs before
    assert together.models[1].load_s < 0.1 * load_s
    assert together.end_s == pytest.approx(apart.end_s - load_s, abs=0.1 * load_s)
    # Without memory for both, loads are as before.
    narrow = [replace_profile(model, kv=200) for model in (first, second)]
    runs = [replay_gpu(narrow, host) for host in (TIME, OVERLAP)]
    assert runs[0].end_s == runs[1].end_s


def test_of_several_urgent_prompts_the_one_with_the_earlier_deadline_comes_first():
    """Both must start within one iteration of the model that runs, in either order of models."""
    running, other = (
        replace_profile(of_one_request(arrival_s, osl), kv=1000)
        for arrival_s, osl in ((0.0, 900), (0.6, 1))
    )
    for limit_s in np.linspace(0.4, 1.0, 13):
        early, late = (
            replace(other, ttft_s=np.array([limit])) for limit in (limit_s, limit_s + 1e-4)
        )
        _, first, second = replay_gpu([running, early, late], TIME).models
        _, *swapped = replay_gpu([running, late, early], TIME).models
        assert first.first_s < second.first_s
        assert [model.first_s for model in swapped] == [second.first_s, first.first_s]


def test_overlapped_loads_delay_fewer_requests():
    late, waited = np.zeros((2, 2))
    for seed in SEEDS:
        models = some(seed, rate=0.1)
        for i, host in enumerate((TIME, OVERLAP)):
            run = replay_gpu(models, host)
            late[i] += sum(int(model.late.sum()) for model in run.models)
            waited[i] += sum(model.load_s for model in run.models)
    assert waited[1] < waited[0] and late[1] <= late[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_stays_on_the_gpu_loads_once(seed):
    """By time with room for all weights, each model loads once."""
    models = some(seed, prof=speed(kv=100_000), weights=1e9)
    assert all(result.loads == 1 for result in replay_gpu(models, TIME).models)
    assert all(result.loads == 0 for result in replay_gpu(models, HOST).models)


def test_memory_bounds_what_shares_by_memory():
    models = some(0, 3, weights=1e10)
    room = models[0].memory_bytes
    longest = max(int((m.input_tokens + m.output_tokens).max()) for m in models) * 1e7
    assert fits_by_memory(models, HOST) == (3e10 + longest <= room)
    wide = [replace_profile(m, kv=40_000) for m in models]
    assert fits_by_memory(wide, HOST)
    assert not fits_by_memory(wide, replace(HOST, process_bytes=2e11))


def replace_profile(own, **how):
    return replace(own, profile=speed(**how))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_of_an_infeasible_replay_changes_no_verdict(seed):
    models = some(seed, 3, rate=float(np.random.default_rng(seed).choice([0.02, 0.1, 0.4])))
    whole = replay_gpu(models, TIME)
    assert replay_gpu(models, TIME, to_the_end=False).met == whole.met
    assert whole.met == all(result.late.mean() <= 0.05 + 1e-12 for result in whole.models)
