"""Laws of the closed loop, what deployments leave unsaid, and the errors on served deployments."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.estimates.deployment_rows import deployment
from simulation.errors import SimulationError
from simulation.performance.curves import overlapped_seconds
from simulation.performance.efficiency import REACHED_PEAK_SHARE
from simulation.performance.estimate.calibration import ENGINES, Calibration
from simulation.performance.estimate.closed_loop import demands, steady_state
from simulation.performance.estimate.defaults import Deployment, arrange
from simulation.performance.estimate.estimate import (
    Estimate,
    RefusedEstimate,
    estimate,
    estimate_rows,
    fit_into_memory,
    loop_of,
    starts_s,
)
from simulation.performance.graph import operator_graph
from simulation.performance.memory import MAX_BATCH_TOKENS
from simulation.performance.specs import Arrangement
from simulation.performance.work import iteration
from tests.shared_folder import DATA, shared
from tools.catalogue.fit_estimate import PredictedSeconds, fit, rows_to_score, table_of
from tools.catalogue.served_models import SILICON, served_rows

KERNELS = efficiencies()
CALIBRATION = estimate_fit().calibration
LLAMA = Deployment(
    catalogue.shape("llama-3.1-70b"),
    catalogue.gpu("H100-SXM"),
    Arrangement(tp=8, moe_tp=8),
    isl=1024.0,
    osl=256.0,
    concurrency=32.0,
)
DEEPSEEK = replace(
    LLAMA,
    shape=catalogue.shape("deepseek-v3"),
    gpu=catalogue.gpu("B200"),
    decode=Arrangement(tp=8, moe_ep=8, weights="fp8"),
)


def one(deployment: Deployment, calibration: Calibration = CALIBRATION) -> Estimate:
    return estimate(deployment, calibration, KERNELS)


@pytest.mark.parametrize("base", [LLAMA, DEEPSEEK], ids=["dense", "experts"])
def test_more_users_wait_longer_for_every_token_and_get_more_of_them_together(
    base: Deployment,
) -> None:
    rows = [replace(base, concurrency=float(n)) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    estimates = estimate_rows(rows, CALIBRATION, KERNELS)
    assert all(isinstance(row, Estimate) for row in estimates)
    for field in ("tbt_s", "ttft_s", "tokens_per_s"):
        assert (np.diff([getattr(row, field) for row in estimates]) > 0).all(), field


@pytest.mark.parametrize("gpu", ["A100-80GB", "H100-SXM", "B200", "MI300X"])
@pytest.mark.parametrize("users", [1.0, 64.0, 100_000.0])
def test_littles_law_holds_with_and_without_a_full_memory(gpu: str, users: float) -> None:
    query = replace(LLAMA, gpu=catalogue.gpu(gpu), concurrency=users)
    answer = one(query)
    stay = answer.ttft_s + (query.osl - 1.0) * answer.tbt_s
    assert answer.tokens_per_s / query.osl * stay == pytest.approx(users)


def test_users_beyond_what_memory_holds_wait_and_it_is_said() -> None:
    some, many = (
        one(replace(LLAMA, concurrency=10_000.0)),
        one(replace(LLAMA, concurrency=20_000.0)),
    )
    assert many.batch == some.batch < 10_000
    assert many.tbt_s == some.tbt_s
    assert many.ttft_s > 1.9 * some.ttft_s
    assert len(many.assumptions) > len(one(replace(LLAMA, concurrency=10.0)).assumptions)
    room = LLAMA.gpu.memory_bytes
    assert 0.8 * room < many.memory_bytes < room


@pytest.mark.parametrize("split", [(8, 1), (4, 2), (2, 4)])
def test_a_gpu_never_holds_more_than_its_memory(split: tuple[int, int]) -> None:
    tp, pp = split
    full = one(replace(LLAMA, decode=Arrangement(tp=tp, pp=pp), concurrency=100_000.0))
    assert full.memory_bytes <= LLAMA.gpu.memory_bytes


@pytest.mark.parametrize("field", ["bandwidth_bytes_s", "peak_flops", "link_bytes_s"])
def test_a_faster_gpu_is_never_slower(field: str) -> None:
    gpu = LLAMA.gpu
    value = getattr(gpu, field)
    twice = {k: 2 * v for k, v in value.items()} if field == "peak_flops" else 2 * value
    slow, fast = one(LLAMA), one(replace(LLAMA, gpu=replace(gpu, name="twice", **{field: twice})))
    assert fast.tbt_s < slow.tbt_s
    assert fast.ttft_s < slow.ttft_s


def test_one_user_gets_what_an_iteration_takes() -> None:
    """No one else's prompt, no queue: by hand from the demands of one decode and one prompt."""
    plain = Calibration(
        mix=1.0, iteration_s=0.0015, sequence_s=0.0005, start_s=0.01, eager_s=1e-12, order=1.0
    )
    query = replace(LLAMA, concurrency=1.0, osl=1e5, shape=replace(LLAMA.shape, max_context=10**6))
    graph = operator_graph(query.shape, query.decode)
    context = query.isl + query.osl / 2
    kernels = demands(graph, query.gpu, KERNELS, iteration(1.0, context))["busy"] + 0.0015
    host = np.float64(0.0005)  # the host prepares the sequence meanwhile
    decode = overlapped_seconds(kernels, host)
    isl = query.isl
    prompt = demands(graph, query.gpu, KERNELS, iteration(0.0, 0.0, isl, isl**2 / 2))["busy"]
    # beside its own decode a prompt reads the weights that are read anyway
    beside = iteration(1.0, context, isl, isl**2 / 2)
    riding = demands(graph, query.gpu, KERNELS, beside)["busy"] + 0.0015 - kernels
    answer = one(query, plain)
    carrying = overlapped_seconds(kernels + riding, host)
    assert answer.tbt_s == pytest.approx(decode + (carrying - decode) / query.osl)
    assert answer.ttft_s == pytest.approx(0.01 + prompt + 0.0015 + decode)


def test_apart_decode_sees_no_prompts() -> None:
    short = replace(LLAMA, prefill=LLAMA.decode, prefill_workers=4.0, decode_workers=1.0)
    together = replace(LLAMA, isl=short.isl)
    assert one(short).tbt_s < one(together).tbt_s
    assert one(short).arranged.gpus == 40.0
    more = replace(short, prefill_workers=8.0)
    assert one(more).tbt_s == one(short).tbt_s
    assert one(more).ttft_s < one(short).ttft_s


def test_rows_are_answered_as_alone_and_a_bad_one_stops_none() -> None:
    small = replace(LLAMA, gpu=catalogue.gpu("L4"), decode=Arrangement())
    rows = [LLAMA, small, DEEPSEEK, replace(LLAMA, engine="sglang"), LLAMA]
    answers = estimate_rows(rows, CALIBRATION, KERNELS)
    assert isinstance(answers[1], RefusedEstimate)
    assert "does not fit on 1 x L4" in answers[1].reason
    assert answers[0] == answers[4] == one(LLAMA)
    assert answers[2] == one(DEEPSEEK)
    with pytest.raises(SimulationError, match="does not fit on 1 x L4"):
        one(small)
    assert estimate_rows([], CALIBRATION, KERNELS) == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"isl": 0.0}, "isl is 0"),
        ({"concurrency": float("nan")}, "concurrency is nan"),
        ({"osl": 1e9}, "takes 131072 tokens"),
        ({"engine": "tgi"}, "Engine 'tgi' is unknown. Use one of vllm, sglang, trtllm"),
        ({"decode_workers": 0.5}, "decode_workers is 0.5"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SimulationError, match=sentence):
        replace(LLAMA, **wrong)


def test_what_is_given_is_kept_and_what_is_assumed_is_said() -> None:
    counted = replace(DEEPSEEK, prefill=DEEPSEEK.decode, prefill_workers=3.0, decode_workers=2.0)
    kept = arrange(counted)
    assert (kept.decode, kept.prefill) == (counted.decode, counted.prefill)
    assert (kept.prefill_workers, kept.decode_workers, kept.gpus) == (3.0, 2.0, 40.0)
    assert kept.assumptions == ()
    unsaid = replace(counted, prefill_workers=None, decode_workers=None, engine="trtllm")
    few, many = arrange(unsaid), arrange(replace(unsaid, concurrency=4096.0))
    assert few.decode_workers == 4.0
    assert few.decode == counted.decode
    assert (many.decode_workers, many.decode.attention_dp, many.decode.tp) == (1.0, 8, 1)
    assert any("decode workers not given: 4 taken" in note for note in few.assumptions)


def test_prefill_that_cannot_keep_up_bounds_what_is_served() -> None:
    apart = replace(LLAMA, prefill=LLAMA.decode, prefill_workers=1.0, decode_workers=8.0, osl=64.0)
    rows = [one(replace(apart, concurrency=float(n))) for n in (16, 64, 256, 1024, 4096, 16384)]
    for few, many in itertools.pairwise(rows):
        assert many.tokens_per_s >= few.tokens_per_s * (1 - 1e-9)
    loop = loop_of([fit_into_memory(replace(apart, concurrency=16384.0))], KERNELS)
    assert loop.prompts_per_rank[0] == MAX_BATCH_TOKENS / apart.isl == 8.0
    most = apart.osl * 8.0 / float(loop.joint_prompts["busy"][0])  # eight prompts an iteration
    assert rows[-1].tokens_per_s <= most * (1 + 1e-9)


def test_gpus_counted_twice_are_counted_once() -> None:
    twice = replace(DEEPSEEK, decode=Arrangement(tp=64, moe_tp=8, moe_ep=8, weights="fp8"))
    assert arrange(twice).decode == DEEPSEEK.decode
    assert "64 GPUs taken as 8" in arrange(twice).assumptions[0]
    tensor = replace(twice, decode=Arrangement(tp=8, attention_dp=8, moe_ep=64, weights="fp8"))
    assert arrange(tensor).decode == replace(DEEPSEEK.decode, moe_tp=1, moe_ep=8)
    copies = Arrangement(tp=1, attention_dp=64, moe_tp=8, moe_ep=8, weights="fp8")
    arranged = arrange(replace(twice, decode=copies)).decode
    assert (arranged.tp, arranged.attention_dp, arranged.moe_ep) == (1, 8, 8)
    across = replace(twice, gpu=catalogue.gpu("GB200"))  # a rack of NVLink has that many
    assert "64 GPUs taken as 8" not in " ".join(arrange(across).assumptions)


def test_a_group_wider_than_engines_make_is_the_gpus_of_all_workers() -> None:
    total = replace(DEEPSEEK, gpu=catalogue.gpu("GB200"), engine="trtllm", equal=False)
    total = replace(total, decode=Arrangement(tp=36, moe_tp=36, weights="fp4"))
    few, many = arrange(total), arrange(replace(total, concurrency=4096.0))
    assert few.split and many.split
    assert (few.decode.gpus, few.decode_workers, few.prefill.gpus) == (8, 4.0, 4)
    assert (many.decode.attention_dp, many.decode.moe_ep, many.decode_workers) == (32, 32, 1.0)
    assert "tp 36 counted over all workers" in few.assumptions[0]
    arranged = arrange(replace(total, decode_workers=2.0))
    assert not arranged.split and arranged.decode.gpus == 36  # what is given is kept


def test_experts_are_not_split_further_than_engines_do() -> None:
    wide = Arrangement(tp=1, attention_dp=32, moe_tp=32, weights="fp8")
    apart = replace(DEEPSEEK, decode=wide, prefill=DEEPSEEK.decode, decode_workers=1.0)
    arranged = arrange(replace(apart, prefill_workers=1.0))
    assert (arranged.decode.moe_tp, arranged.decode.moe_ep) == (1, 32)
    assert "experts on 32 GPUs assumed expert-parallel" in arranged.assumptions


def test_the_fit_finds_back_a_calibration_from_what_it_predicts() -> None:
    """Rows whose measurements are predictions of a known calibration; one in five wrong by 3x."""
    shared(DATA / SILICON)
    rows = served_rows(DATA, energy=False)
    rows = rows.take(np.flatnonzero(~rows.unsure)[::7])
    known = replace(Calibration(), split_decode=0.8, mix=0.8)
    truth = steady_state(rows.loop, known)
    broken = np.where(np.arange(rows.size) % 5 == 0, 3.0, 1.0)
    made = replace(rows, tbt_s=truth.tbt_s * broken, ttft_s=truth.ttft_s)
    refitted = fit(made)
    again = steady_state(rows.loop, refitted)
    assert np.median(np.abs(again.tbt_s / truth.tbt_s - 1.0)) < 0.05
    assert np.median(np.abs(again.ttft_s / truth.ttft_s - 1.0)) < 0.05


def test_hosts_prepare_sequences_while_the_gpu_computes() -> None:
    idle, busy = (replace(CALIBRATION, sequence_s=seconds) for seconds in (1e-12, 1e-2))
    (batch,) = loop_of([fit_into_memory(LLAMA)], KERNELS).batch
    for engine in ENGINES:
        query = replace(LLAMA, engine=engine)
        kernels_s, typical_s = one(query, idle).decode_s, one(query).decode_s
        assert kernels_s < typical_s < kernels_s + CALIBRATION.sequence_s * batch
        assert one(query, busy).decode_s == pytest.approx(1e-2 * batch, rel=0.01)


def test_a_separate_prefill_queues_before_it_is_full_and_never_beyond_its_rate() -> None:
    """The queue grows with the users, and no worker computes more than its prompts per second."""
    apart = replace(LLAMA, prefill=LLAMA.decode, prefill_workers=1.0, rounds=np.inf)
    answers = [one(replace(apart, concurrency=n, osl=64.0)) for n in (1.0, 8.0, 32.0, 128.0)]
    assert (np.diff([answer.ttft_s for answer in answers]) > 0).all()
    busy = [answer.tokens_per_s / 64.0 * answer.prompt_s for answer in answers]
    assert (np.diff(busy) > 0).all() and busy[-1] > 0.9


def test_the_persistent_kernel_adds_its_time_per_layer_to_decodes_of_some_releases() -> None:
    shape, where = catalogue.shape("deepseek-r1"), Arrangement(tp=8, moe_tp=8, weights="fp8")
    added = CALIBRATION.persistent_s * shape.layers
    plain = replace(CALIBRATION, persistent_s=1e-12)
    for gpu, version, slow in (
        ("MI300X", "0.5.9", True), ("MI300X", "0.5.10", False), ("MI300X", "", False),
        ("MI355X", "0.5.5.post3", True), ("MI355X", "0.5.8", False), ("B200", "0.5.5", False),
    ):  # fmt: skip
        query = Deployment(
            shape, catalogue.gpu(gpu), where, 1024.0, 1024.0, 1.0, "sglang", version=version
        )
        slower = one(query).decode_s - one(query, plain).decode_s
        assert slower == pytest.approx(added if slow else 0.0, rel=0.05, abs=1e-7)


def test_kernels_of_another_vendor_lag_by_the_peaks_that_products_reach() -> None:
    for kind, precision in (("gemm", "fp8"), ("experts", "bf16"), ("all_reduce", "bf16")):
        own, other = (KERNELS.find(kind, family, precision) for family in ("hopper", "cdna3"))
        lag = REACHED_PEAK_SHARE["hopper"] / REACHED_PEAK_SHARE["cdna3"]
        assert other.floor_s == pytest.approx(lag * own.floor_s)
        assert own.bandwidth == pytest.approx(lag * other.bandwidth)
        assert KERNELS.find(kind, "gaudi", precision) == other
        assert KERNELS.find(kind, "volta", precision) == KERNELS.find(kind, "ampere", precision)


@pytest.mark.parametrize(("moe_tp", "moe_ep"), [(1, 8), (8, 1)])
def test_ranks_with_a_prompt_each_take_longer_than_one_of_them(moe_tp: int, moe_ep: int) -> None:
    spread = Arrangement(attention_dp=8, moe_tp=moe_tp, moe_ep=moe_ep, weights="fp8")
    lone = replace(DEEPSEEK, decode=spread, isl=8192.0, concurrency=1.0, rounds=np.inf)
    loop = loop_of([fit_into_memory(lone)], KERNELS)
    assert loop.lone_prompt["kernels"] == loop.prefill["kernels"]
    assert loop.lone_prompt["scaled"] < loop.prefill["scaled"]
    prompts = [one(replace(lone, concurrency=users, osl=64.0)) for users in (1.0, 4.0, 64.0)]
    assert (np.diff([estimated.ttft_s for estimated in prompts]) > 0).all()
    without_spread = loop_of([fit_into_memory(replace(lone, decode=DEEPSEEK.decode))], KERNELS)
    assert without_spread.lone_prompt["busy"] == pytest.approx(without_spread.prefill["busy"])


@pytest.mark.parametrize("engine", ENGINES)
def test_scaled_products_slow_mixtures_of_experts_in_8_bits_but_on_vllm(engine: str) -> None:
    factors = [replace(CALIBRATION, scaled=factor) for factor in (1.0, 1.5)]
    dense = replace(LLAMA, decode=replace(LLAMA.decode, weights="fp8"))
    in_16_bits = Arrangement(tp=16, moe_tp=16)
    for base, slows in (
        (DEEPSEEK, engine != "vllm"),
        (replace(DEEPSEEK, decode=in_16_bits), False),
        (dense, False),
    ):
        for quantity in ("tbt_s", "ttft_s"):
            plain, slow = (
                getattr(one(replace(base, engine=engine), factor), quantity) for factor in factors
            )
            assert slow > plain if slows else slow == plain


def test_caps_chunks_and_hits_change_an_estimate() -> None:
    busy = replace(LLAMA, concurrency=64.0)
    capped = one(replace(busy, max_num_seqs=8.0))
    assert capped.batch == 8.0 and capped.tbt_s < one(busy).tbt_s
    assert capped.ttft_s > one(busy).ttft_s
    assert one(replace(busy, prefix_hit_rate=0.5)).ttft_s < one(busy).ttft_s
    assert one(replace(busy, median_ttft=True)).ttft_s <= one(busy).ttft_s
    whole, chunked = (
        loop_of([fit_into_memory(replace(busy, chunk_tokens=tokens))], KERNELS)
        for tokens in (8192.0, 2048.0)
    )
    assert whole.prompts_per_rank[0] == 4.0 * chunked.prompts_per_rank[0]
    with pytest.raises(SimulationError, match="prefix_hit_rate"):
        replace(LLAMA, prefix_hit_rate=1.0)


@pytest.mark.parametrize(
    ("engine", "copies", "waits"),
    [("trtllm", 4, True), ("trtllm", 1, False), ("vllm", 4, False), ("sglang", 4, False)],
)
def test_tensorrt_llm_lets_a_prompt_wait_for_those_of_other_copies_of_attention(
    engine: str, copies: int, waits: bool
) -> None:
    where = replace(DEEPSEEK.decode, tp=8 // copies, attention_dp=copies)
    query = replace(DEEPSEEK, decode=where, engine=engine)
    at_once = replace(CALIBRATION, gather=0.0)
    answer = one(query)
    waited = CALIBRATION.gather * answer.decode_s if waits else 0.0
    assert answer.ttft_s - one(query, at_once).ttft_s == pytest.approx(waited)
    assert answer.tbt_s == one(query, at_once).tbt_s
    begun, before = (
        starts_s(query.shape, query.gpu, where, [engine], c, KERNELS)[0]
        for c in (CALIBRATION, at_once)
    )
    assert (begun - before > 0.1) is waits


def test_served_deployments_are_met_as_the_catalogue_says() -> None:
    """The shipped values on the rows they were fitted to: errors as in estimate.yaml."""
    shared(DATA / SILICON)
    rows = served_rows(DATA, energy=False)
    assert rows.refused == ()
    steady = steady_state(rows.loop, CALIBRATION)
    for mode, apart in (("agg", False), ("disagg", True)):
        kept = rows_to_score(rows)
        shown = estimate_fit().errors["seen"].cells[mode]
        assert shown.rows == (rows.loop.disaggregated[kept] == apart).sum()
        found = table_of(rows, PredictedSeconds(steady.tbt_s, steady.ttft_s), kept).cells[mode]
        for name in ("tbt", "ttft", "tbt_90", "ttft_90"):
            assert getattr(found, name) == pytest.approx(getattr(shown, name), rel=0.02), name


def test_the_loop_counts_sequences_per_worker() -> None:
    query = replace(LLAMA, decode_workers=4.0)
    loop = loop_of([fit_into_memory(query)], KERNELS)
    assert loop.batch[0] == 8.0
    assert one(query).arranged.gpus == 32.0
    assert one(query).tokens_per_s == pytest.approx(
        4.0 * one(replace(LLAMA, concurrency=8.0)).tokens_per_s
    )


def test_steady_traffic_has_no_first_wave_to_wait_for() -> None:
    waits = [one(replace(LLAMA, rounds=rounds)).ttft_s for rounds in (2.0, 10.0, 1000.0)]
    assert waits == sorted(waits, reverse=True)
    alone = one(replace(LLAMA, concurrency=1.0, rounds=2.0)).ttft_s
    assert alone == one(replace(LLAMA, concurrency=1.0, rounds=1000.0)).ttft_s
    with pytest.raises(SimulationError, match=r"rounds is 0\.5"):
        replace(LLAMA, rounds=0.5)


def test_steady_traffic_computes_every_prompt_between_tokens() -> None:
    """Only a common start, which more rounds blur, keeps prompts out of decoding."""
    some, most = (replace(CALIBRATION, mix=share, engines={}) for share in (0.4, 0.8))
    steady = replace(LLAMA, rounds=np.inf)
    assert one(steady, some).tbt_s == one(steady, most).tbt_s
    assert one(LLAMA, some).tbt_s < one(LLAMA, most).tbt_s < one(steady, most).tbt_s


def test_tensorrt_llm_starts_requests_only_if_their_whole_cache_fits() -> None:
    full = replace(LLAMA, osl=1024.0, concurrency=100_000.0)
    batches = {engine: one(replace(full, engine=engine)).batch for engine in ENGINES}
    assert batches["vllm"] == batches["sglang"]
    assert batches["trtllm"] / batches["vllm"] == pytest.approx(1536.0 / 2048.0, rel=0.01)


def test_drafted_tokens_cost_an_iteration_and_those_that_stand_come_for_nothing() -> None:
    plain, useless = one(DEEPSEEK), one(replace(DEEPSEEK, drafted=3.0, accepted=0.0))
    typical = one(replace(DEEPSEEK, drafted=3.0))  # the accepted share is that of measured rows
    best = one(replace(DEEPSEEK, drafted=3.0, accepted=3.0))
    assert best.tbt_s < typical.tbt_s < useless.tbt_s and plain.tbt_s < useless.tbt_s
    assert best.tbt_s > useless.tbt_s / 4.0  # at best four tokens of one iteration
    idle = replace(CALIBRATION, draft_s=0.0)
    for engine in ENGINES:  # TensorRT-LLM drafts within the captured graph
        query = replace(DEEPSEEK, engine=engine, drafted=3.0)
        assert (one(query, idle).tbt_s < one(query).tbt_s) is (engine != "trtllm")
    with pytest.raises(SimulationError, match="2 of 1 drafted tokens cannot be accepted"):
        replace(DEEPSEEK, drafted=1.0, accepted=2.0)


def test_prompts_of_others_ride_on_iterations_that_read_the_weights_anyway() -> None:
    """Short prompts beside a large batch cost less than computed alone."""
    loop = loop_of([fit_into_memory(replace(LLAMA, isl=64.0, concurrency=64.0))], KERNELS)
    alone, decode, both = (loop.prefill["busy"], loop.decode["busy"], loop.mixed["busy"])
    assert decode < both < decode + 0.7 * alone


def test_prompts_that_wait_are_computed_together() -> None:
    """Eight of 1,024 tokens read the experts once: less than eight alone, no less than one."""
    loop = loop_of([fit_into_memory(replace(DEEPSEEK, concurrency=64.0))], KERNELS)
    alone, crowd = float(loop.prefill["busy"][0]), float(loop.joint_prompts["busy"][0])
    assert loop.prompts_per_rank[0] == 8.0
    assert alone < crowd < 8.0 * alone
    two = loop_of([fit_into_memory(replace(DEEPSEEK, concurrency=2.0))], KERNELS)
    assert two.prompts_per_rank[0] == 1.0  # nobody else waits
    assert float(two.joint_prompts["busy"][0]) == float(two.prefill["busy"][0])


@pytest.mark.parametrize(
    ("engine", "slowed"), [("trtllm", True), ("sglang", True), ("vllm", False)]
)
def test_decodes_wait_for_the_launches_of_prompts_beside_them_but_not_vllms(
    engine: str, slowed: bool
) -> None:
    query = replace(LLAMA, engine=engine, equal=False)
    slow = replace(CALIBRATION, eager_s=10.0 * CALIBRATION.eager_s)
    none = replace(CALIBRATION, eager_s=1e-12)
    assert (one(query, slow).tbt_s > one(query, none).tbt_s) is slowed
    many = replace(query, concurrency=1024.0, osl=64.0)  # a prompt in every iteration: once for all
    loop = loop_of([fit_into_memory(many)], KERNELS)
    host = slow.eager_s * float(loop.prefill["kernels"][0])
    assert one(many, slow).tbt_s - one(many, none).tbt_s < host * (1.0 if slowed else 1e-9)


def test_a_collective_between_servers_was_measured() -> None:
    """What is assumed before the fit: Vidur's all-reduces of 8 to 256 KB on A100."""
    rows = pl.read_csv(shared(DATA / "profiles/vidur_network.csv.gz")).filter(
        (pl.col("collective") == "all_reduce")
        & (pl.col("node_sku") == "a100_dgx")
        & pl.col("size_bytes").is_between(8 << 10, 256 << 10)
    )
    took = rows.group_by("num_workers", "devices_per_node", "size_bytes").agg(
        pl.col("median_ms").median()
    )
    near = took.filter(pl.col("num_workers") == pl.col("devices_per_node"))
    far = took.filter(pl.col("num_workers") == 2 * pl.col("devices_per_node"))
    both = far.filter(pl.col("devices_per_node") >= 4).join(
        near, on=["devices_per_node", "size_bytes"]
    )
    more = (both["median_ms"] - both["median_ms_right"]).median()
    assert Calibration().far_s * 1e3 == pytest.approx(more, rel=0.05)


def test_experts_on_several_gpus_without_tensor_parallelism_are_data_parallel() -> None:
    row = {"model": "deepseek-v3", "gpu": "B200", "tp": 1, "moe_tp": 1, "moe_ep": 8,
           "isl": 1024, "osl": 256, "concurrency": 32}  # fmt: skip
    parallel = deployment(row).decode
    assert (parallel.gpus, parallel.attention_dp, parallel.moe_ep) == (8, 8, 8)
