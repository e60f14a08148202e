"""Steady state of a closed loop: N users, each with one request in flight at any time.

The time of an iteration comes from the operator graph and the efficiency factors of the GPU's
family (``demands``). A ``Calibration`` holds how serving differs from kernels that run alone.
``steady_state`` combines the iterations. All values are arrays over deployments, so that many rows
are evaluated in one call.

Aggregated: the prompts of other users are computed between a request's tokens. In steady state one
of the b sequences finishes every osl / b iterations. So each iteration carries b / osl prompts, and

    TBT = decode(b) + mix * b / osl * prompt

Disaggregated: decode workers see no prompts, so TBT = decode(b). TTFT is the sum of

- the time of the request's own prompt,
- the wait for the prompts before it, since users start together and keep part of that order,
- the transfer of the prompt's cache to the decode worker,
- the queue for prefill workers, which hold back all users who are not decoding,
- the wait for a place in the batch if memory limits it: by Little's law
  N = throughput * (TTFT + (osl - 1) TBT).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.performance.curves import overlapped_seconds
from simulation.performance.efficiency import (
    NEAREST,
    Efficiencies,
    kernel_s,
    link_bytes_s,
    scaled_by_block,
    unpacks_weights,
)
from simulation.performance.estimate.calibration import ENGINES, PER_ENGINE, ROUNDS, Calibration
from simulation.performance.graph import OperatorGraph
from simulation.performance.specs import GpuSpec
from simulation.performance.work import Collective, Experts, Iteration

Demands = Mapping[str, FloatArray]

# Seconds of kernels, or counts, of one GPU's part of an iteration.
DEMANDS = (
    "busy",  # all operators except the next two
    "scaled",  # products with 8-bit weights that have a scale for each block; none was measured
    "unpacked",  # experts whose 4-bit weights are unpacked; no such kernel was measured
    "foreign",  # the part of all these of a vendor without measured kernels
    "far",  # number of collectives between nodes
    "kernels",  # number of operators
)
VLLM, SGLANG, TRTLLM = (ENGINES.index(name) for name in ("vllm", "sglang", "trtllm"))
SHARE_AHEAD_IN_STEP = (
    0.5  # share of the others' prompts before a first token if all users are in step
)


def demands(
    graph: OperatorGraph,
    gpu: GpuSpec,
    efficiencies: Efficiencies,
    iteration: Iteration,
    routed: Iteration | None = None,
) -> Demands:
    """Return the seconds and counts that ``DEMANDS`` defines, for one GPU in each iteration.

    Seconds of an operator count as "busy", "scaled" or "unpacked". ``routed`` are the iterations
    that the experts compute; None: ``iteration``. They differ if only some attention ranks have a
    prompt.
    """
    totals = {name: np.zeros(iteration.decodes.shape) for name in DEMANDS}
    is_foreign = gpu.family not in NEAREST  # of a vendor without measured kernels
    for operator in graph.operators:
        if operator.axis == "encoder":
            continue
        own_iteration = iteration
        if routed is not None and isinstance(operator, Experts):
            own_iteration = routed
        seconds = operator.count * kernel_s(operator, own_iteration, gpu, efficiencies)
        if unpacks_weights(operator, gpu):
            totals["unpacked"] += seconds
        elif scaled_by_block(operator, gpu):
            totals["scaled"] += seconds
        else:
            totals["busy"] += seconds
        totals["foreign"] += seconds * is_foreign
        calls = operator.count * (operator.rows(iteration) > 0)
        if not isinstance(operator, Collective):
            totals["kernels"] += calls
        elif link_bytes_s(operator, gpu) != gpu.link_bytes_s:  # a collective between nodes
            totals["far"] += calls
    return totals


@dataclass(frozen=True, slots=True, eq=False)
class ClosedLoop:
    """Deployments whose users send the next request after each answer, as arrays ``[n]``.

    Sequences are counted per decode worker.
    """

    engine: IntArray  # index into ENGINES
    disaggregated: BoolArray
    isl: FloatArray
    osl: FloatArray
    users: FloatArray  # concurrency of the deployment
    batch: FloatArray  # sequences of one decode worker, at most
    decode_workers: FloatArray
    prefill_workers: FloatArray  # nan: enough to keep up with decode
    transfer_s: FloatArray  # of a prompt's cache from a prefill to a decode worker
    prefill_ranks: FloatArray  # prompts that one prefill worker computes at once, one per rank
    prompts_per_rank: FloatArray  # in one iteration, if many prompts wait
    decode_ranks: FloatArray  # attention ranks that share a decode worker's sequences
    rounds: FloatArray  # requests of each user, all starting together; inf: steady traffic
    drafted: FloatArray  # draft tokens per sequence and iteration
    accepted: FloatArray  # accepted ones of them; nan: unknown
    layers: FloatArray  # of the model; drafting a token computes one more
    median_ttft: BoolArray  # TTFT is a median of requests, not the mean
    equal_lengths: BoolArray  # all requests have the same lengths
    recv_interval: FloatArray  # decode iterations between two polls for requests
    persistent: BoolArray  # latent attention by AITER's persistent kernel
    decode: Demands  # an iteration of ``batch`` decodes with their draft tokens
    prefill: Demands  # an iteration of ``prefill_ranks`` prompts
    lone_prompt: Demands  # an iteration of one prompt on one of the ranks; the others wait for it
    joint_prompts: Demands  # an iteration of ``prompts_per_rank * prefill_ranks`` prompts
    mixed: Demands  # an iteration of ``decode`` and ``prefill`` together


def iteration_s(loop: ClosedLoop, work: Demands, calibration: Calibration) -> FloatArray:
    """Return the seconds of an iteration with ``work`` in each deployment of ``loop``, ``[n]``."""
    scaled = np.array([calibration.scaled_by(engine) for engine in ENGINES])[loop.engine]
    seconds = work["busy"] + calibration.unpacked * work["unpacked"] + scaled * work["scaled"]
    seconds = seconds + (calibration.foreign - 1.0) * work["foreign"]
    return np.asarray(seconds + calibration.far_s * work["far"] + calibration.iteration_s)


@dataclass(frozen=True, slots=True, eq=False)
class SteadyState:
    """Steady state of ``n`` deployments: seconds, and output tokens per second of each, ``[n]``."""

    ttft_s: FloatArray
    tbt_s: FloatArray
    tokens_per_s: FloatArray
    decode_s: FloatArray  # an iteration without prompts
    prompt_s: FloatArray  # an iteration of one prompt per prefill rank
    prefill_workers: FloatArray  # as given, or enough to keep up with decode


class _Iterations(NamedTuple):
    """Seconds of the iterations of each deployment, ``[n]`` each."""

    kernels_s: FloatArray  # GPU time of a decode iteration
    host_s: FloatArray  # time of the host for it, which overlaps with the GPU's
    drafting_s: FloatArray  # to draft tokens before it
    decode_s: FloatArray  # a whole decode iteration
    prompt_s: FloatArray  # an iteration of one prompt per prefill rank
    lone_prompt_s: FloatArray  # an iteration of one prompt on one of the ranks
    launch_s: FloatArray  # of the host to launch the kernels of an iteration with prompts
    joint_prompts_s: FloatArray  # waiting prompts computed together, without scheduling
    joint_prompt_s: FloatArray  # the part of one prompt in it, limited by the host


def _iterations(loop: ClosedLoop, calibration: Calibration) -> _Iterations:
    """Return the seconds of iterations with decodes only, and of those with prompts only.

    A decode iteration is the kernels on the GPU, overlapped with the host's work, and the drafting
    before it. Drafting a token costs time on the host, and on the GPU that of one more layer.
    """
    decode_s = iteration_s(loop, loop.decode, calibration)  # without the host and drafting
    kernels_s = decode_s + calibration.persistent_s * loop.layers * loop.persistent
    kernels_s = kernels_s * np.where(loop.disaggregated, calibration.split_decode, 1.0)
    # SGLang's host prepares each sequence twice, to draft and to verify. TensorRT-LLM drafts within
    # the captured graph, so its host does nothing for a draft.
    prepared = np.where((loop.engine == SGLANG) & (loop.drafted > 0.0), 2.0, 1.0)
    # Engines prepare the next iteration while the GPU computes (overlap or async scheduling).
    host_s = prepared * calibration.sequence_s * loop.batch / loop.decode_ranks
    layer_s = (decode_s - calibration.iteration_s) / loop.layers
    host_draft_s = np.where(loop.engine == TRTLLM, 0.0, calibration.draft_s)
    drafting_s = loop.drafted * (host_draft_s + layer_s)
    # Prompts run without captured CUDA graphs. The host launches every kernel and may be slower
    # than the GPU. Waiting prompts are computed together, up to the tokens of an iteration.
    launch_s = calibration.eager_s * loop.prefill["kernels"]
    joint_prompts_s = iteration_s(loop, loop.joint_prompts, calibration) - calibration.iteration_s
    prompt_count = loop.prompts_per_rank * loop.prefill_ranks
    return _Iterations(
        kernels_s,
        host_s,
        drafting_s,
        decode_s=overlapped_seconds(kernels_s, host_s) + drafting_s,
        prompt_s=iteration_s(loop, loop.prefill, calibration),
        lone_prompt_s=iteration_s(loop, loop.lone_prompt, calibration),
        launch_s=launch_s,
        joint_prompts_s=joint_prompts_s,
        joint_prompt_s=np.maximum(joint_prompts_s, launch_s) / prompt_count,
    )


def _are_in_step(loop: ClosedLoop) -> BoolArray:
    """Return the mask of deployments whose users stay in step: SGLang with equal lengths.

    All prompts then run one after the other before any decoding. On average half of the other
    prompts come before a request's first token, and the other half between its first and second
    token.
    """
    return np.asarray(loop.equal_lengths & ~loop.disaggregated & (loop.engine == SGLANG))


def _added_to_decode(
    loop: ClosedLoop, calibration: Calibration, times: _Iterations, mix: FloatArray
) -> FloatArray:
    """Return the mean seconds that prompts of other users add to a decode iteration, ``[n]``.

    ``mix`` is the share of those prompts that the engine computes between a request's tokens, in a
    benchmark of ROUNDS requests per user.
    """
    in_step = _are_in_step(loop)
    # Prompts in an iteration. The common start keeps some prompts out of decoding, and counts less
    # with more rounds. In steady traffic every prompt falls between tokens of the others.
    mix_of_rounds = np.maximum(1.0 - (1.0 - mix) * ROUNDS / loop.rounds, 0.0)
    share_between_tokens = np.where(in_step, 1.0 - SHARE_AHEAD_IN_STEP, mix_of_rounds)
    prompts = share_between_tokens * loop.batch / loop.osl
    # The first prompt adds less: the weights that it needs are read for the decodes anyway.
    mixed_s = iteration_s(loop, loop.mixed, calibration)
    first_prompts_s = np.maximum(mixed_s - iteration_s(loop, loop.decode, calibration), 0.0)
    first_s = np.where(in_step, times.joint_prompt_s, first_prompts_s / loop.prefill_ranks)
    further_prompts = np.maximum(prompts - 1.0, 0.0)
    joint_prompt_count = loop.prompts_per_rank * loop.prefill_ranks
    further_s = further_prompts * times.joint_prompts_s / joint_prompt_count
    # The whole iteration. Decodes in an iteration with prompts also lose the captured graph, except
    # on vLLM, which captures pieces of such iterations.
    kernels_s = times.kernels_s + first_s + further_s
    with_prompts_s = overlapped_seconds(kernels_s, times.host_s) + times.drafting_s
    launch_s = np.where((loop.engine == VLLM) | in_step, 0.0, times.launch_s)
    added_s = overlapped_seconds(with_prompts_s, launch_s) - times.decode_s
    return np.asarray(np.minimum(prompts, 1.0) * added_s)  # at most every iteration has prompts


def _prompt_s(loop: ClosedLoop, times: _Iterations, per_s: FloatArray) -> FloatArray:
    """Return the seconds of the iteration that computes a request's prompt.

    Attention ranks wait for each other. So each further rank with a prompt, which arrived during
    the iteration before, makes the iteration longer. ``per_s`` is the rate at which prompts arrive
    at the worker.
    """
    other_ranks = loop.prefill_ranks - 1.0
    added_by_rank = (times.prompt_s - times.lone_prompt_s) / np.maximum(other_ranks, 1.0)
    # An iteration with prompts on ``arrived`` other ranks lasts lone + arrived * added_by_rank.
    # In that time per_s times as many arrive. This solves for arrived.
    arrived = per_s * times.lone_prompt_s / np.maximum(1.0 - per_s * added_by_rank, 1e-9)
    return np.asarray(times.lone_prompt_s + added_by_rank * np.minimum(arrived, other_ranks))


def _ttft_without_queue(
    loop: ClosedLoop,
    calibration: Calibration,
    times: _Iterations,
    *,
    start_s: FloatArray,
    prompt_s: FloatArray,
    others: FloatArray,
) -> FloatArray:
    """Return the TTFT in seconds of a request that waits for no prompt of the first round.

    ``start_s`` is the engine's time before the first iteration, ``prompt_s`` the time of the
    prompt's iteration. ``others`` is the number of other requests at the same prefill worker.
    """
    # Start, the running iteration (disaggregated prefill has no decodes), and the prompt's own.
    started_s = start_s * np.where(loop.disaggregated, calibration.split_start, 1.0)
    running_s = np.where(loop.disaggregated, 0.0, times.decode_s)
    ttft_s = started_s + overlapped_seconds(prompt_s, times.launch_s) + running_s
    # Decode iterations before the prompt's own. TensorRT-LLM delays a prompt for those of other
    # attention ranks, and SGLang polls for requests only now and then.
    gathers = (loop.engine == TRTLLM) & (loop.decode_ranks > 1.0)
    delay_iterations = np.where(gathers, calibration.gather, 0.0)
    delay_iterations = delay_iterations + calibration.polls * loop.recv_interval
    ttft_s = ttft_s + np.where(loop.disaggregated, 0.0, delay_iterations * times.decode_s)
    # Requests of equal lengths keep their order of start, so each waits for ``calibration.train``
    # prompts before it.
    keeps_order = loop.equal_lengths & ~loop.disaggregated & ~_are_in_step(loop)
    prompts_before = np.where(keeps_order, np.minimum(calibration.train, others), 0.0)
    rank_prompt_s = np.maximum(times.prompt_s - calibration.iteration_s, times.launch_s)
    ttft_s = ttft_s + prompts_before * (rank_prompt_s / loop.prefill_ranks)
    return np.asarray(ttft_s + np.where(loop.disaggregated, loop.transfer_s, 0.0))


def steady_state(loop: ClosedLoop, calibration: Calibration) -> SteadyState:
    """Return TTFT, TBT and throughput of the deployments, with the constants of ``calibration``.

    TBT is a decode iteration, plus the time that prompts of other users add. TTFT is the sum of the
    start, the prompt, the prompts of other users before it, and the wait for a place in the batch.
    """
    # By engine: the share of others' prompts that falls between a request's tokens, the seconds
    # before its first iteration, and the share of the others whose prompts it waits for.
    mix, start_s, share_ahead = (
        np.array([calibration.of(constant, engine) for engine in ENGINES])[loop.engine]
        for constant in PER_ENGINE
    )
    times = _iterations(loop, calibration)
    tbt_s = _tbt_s(loop, calibration, times, mix)

    # Prefill workers and their load. Each user with a place in the batch sends a prompt every osl
    # tokens. Unless stated, there are as many workers as compute these prompts.
    users_in_batch = np.minimum(loop.users, loop.batch * loop.decode_workers)
    enough_workers = np.maximum(users_in_batch * times.joint_prompt_s / (loop.osl * tbt_s), 1.0)
    workers = np.where(np.isnan(loop.prefill_workers), enough_workers, loop.prefill_workers)
    users_per_worker = np.where(loop.disaggregated, users_in_batch / workers, loop.batch)
    others = np.maximum(users_per_worker, 1.0) - 1.0
    prompt_workers = np.where(loop.disaggregated, workers, loop.decode_workers)
    prompts_per_s = users_in_batch / prompt_workers / (loop.osl * tbt_s)  # of each worker

    # TTFT alone, and then with the wait for the prompts of other users: those of the first round,
    # which all start together, and those in the queue of a prefill worker.
    prompt_s = _prompt_s(loop, times, prompts_per_s)
    ttft_alone_s = _ttft_without_queue(
        loop, calibration, times, start_s=start_s, prompt_s=prompt_s, others=others
    )
    share_before = _share_before(loop, calibration, share_ahead)
    first_wait_s = share_before * others * times.joint_prompt_s
    decoding_s = (loop.osl - 1.0) * tbt_s  # between two prompts of a user
    # A user's TTFT and decoding last at least as long as the prompts of all users of the worker.
    least_ttft_s = users_per_worker * times.joint_prompt_s - decoding_s
    queue_s = _prefill_queue_s(least_ttft_s, times.joint_prompt_s, decoding_s)
    split_ttft_s = ttft_alone_s + overlapped_seconds(queue_s, first_wait_s)
    joint_ttft_s = np.maximum(ttft_alone_s + first_wait_s, least_ttft_s)
    ttft_s = np.where(loop.disaggregated, split_ttft_s, joint_ttft_s)

    # Users that exceed the batch wait for a place (Little's law).
    stay_s = ttft_s + decoding_s
    wait_s = stay_s * (loop.users / users_in_batch - 1.0)
    tokens_per_s = loop.osl * users_in_batch / stay_s
    return SteadyState(
        ttft_s + wait_s, tbt_s, tokens_per_s, times.decode_s, times.prompt_s, workers
    )


def _share_before(loop: ClosedLoop, calibration: Calibration, ahead: FloatArray) -> FloatArray:
    """Return the share of the other users whose prompts come before a request's own, ``[n]``.

    ``ahead`` is that of the first round, in which all requests arrive at once.
    """
    ahead = ahead * np.where(loop.disaggregated, calibration.split_order, 1.0)
    # The median request is not of the first round. Later rounds mix, unless prefill has a queue.
    ahead = np.where(loop.median_ttft & ~loop.disaggregated, 0.0, ahead)
    # With more rounds the first one counts less.
    return np.where(_are_in_step(loop), SHARE_AHEAD_IN_STEP, ahead * ROUNDS / loop.rounds)


def _prefill_queue_s(
    least_ttft: FloatArray, prompt_s: FloatArray, decoding: FloatArray
) -> FloatArray:
    """Return the mean seconds that a prompt waits for others at its prefill worker.

    It is by approximate mean value analysis (Schweitzer 1979; Reiser and Lavenberg 1980). All
    arguments are in seconds. ``decoding`` is the time between two prompts of a user. ``least_ttft``
    is the time of the prompts of all users of the worker, less ``decoding``, and may be negative.
    """
    root = np.sqrt(least_ttft**2 + 4.0 * prompt_s * decoding)
    return np.asarray(np.maximum((least_ttft + root) / 2.0 - prompt_s, 0.0))


def _tbt_s(
    loop: ClosedLoop, calibration: Calibration, times: _Iterations, mix: FloatArray
) -> FloatArray:
    """Return the mean seconds between two tokens of a request; for ``mix`` see Calibration."""
    # A drafted token counts only if all before it are accepted: the sum of acceptance ** 1, 2, ...
    acceptance = calibration.acceptance
    expected = acceptance * (1.0 - acceptance**loop.drafted) / (1.0 - acceptance)
    accepted = np.where(np.isnan(loop.accepted), expected, loop.accepted)
    added_s = np.where(loop.disaggregated, 0.0, _added_to_decode(loop, calibration, times, mix))
    return np.asarray(times.decode_s / (1.0 + accepted) + added_s)
