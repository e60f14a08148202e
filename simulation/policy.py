"""The protocol of every scaling policy: it gets an observation and returns targets or actions."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet

# Upper bounds in seconds of the latency histograms of llm-d's components (``GeneralLatencyBuckets``
# in pkg/metrics of github.com/llm-d/llm-d-router), up to two minutes.
LATENCY_BOUNDS_S: FloatArray = np.array([
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30,
    45, 60, 120,
])  # fmt: skip

# Defaults of the utilization detector of llm-d's endpoint picker (github.com/llm-d/llm-d-router,
# pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization/README.md).
QUEUE_DEPTH, KV_SHARE = 5, 0.8


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """Measurements since the last scaling decision; every array has shape ``[pools]``.

    Without a measurement (no first token, no ready instance) a mean is NaN and a rate is 0.
    """

    busy: FloatArray  # share of ready instances' time with an iteration running
    # modelled: share of that time in which the SMs compute (roofline of the batch)
    sm_activity: FloatArray
    prefill_tps: FloatArray  # prompt tokens computed per second, without prefix-cache hits
    decode_tps: FloatArray  # output tokens per second
    batch: FloatArray  # mean sequences in the batch of a ready instance
    ttft_s: FloatArray  # mean over requests that got their first token
    tbt_s: FloatArray  # mean over the gaps between tokens of completed requests
    late_first: FloatArray  # share of first tokens after the TTFT limit of their tier
    late_done: FloatArray  # share of completed requests beyond their TBT or E2E limit
    # share of admitted prompt tokens found in the prefix cache; NaN without one
    hit_rate: FloatArray
    evicted_tps: FloatArray  # tokens per second evicted from prefix caches
    preemptions: IntArray
    failed: IntArray  # instances lost to faults


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """All inputs of a policy at a scaling decision.

    Every array has shape ``[pools]`` unless noted.
    """

    time_s: float  # seconds since the start of the simulation
    ready: IntArray  # ready instances
    starting: IntArray  # requested or switching to the pool, not yet ready
    draining: IntArray  # instances that finish their requests, get no new ones and are removed
    utilisation: FloatArray  # KV tokens in use over KV tokens of ready instances
    waiting: IntArray  # requests at the pool's instances that are not in a batch yet
    input_tps: FloatArray  # input tokens per second that arrived since the last decision
    signals: Signals | None = None  # only for a policy with ``wants_signals``
    deferred: IntArray | None = None  # requests in the NIW queue of the pool's model
    spare: IntArray | None = None  # instances lent out as spot that could come back
    # Utilization of an iteration of the ready instances, waiting requests included. It is the
    # largest of three shares: KV tokens of KV memory, tokens to compute of the token budget, and
    # sequences of the largest batch. From 1 on some request waits.
    load: FloatArray | None = None
    # Input tokens/s requested from the model by users of the pool's region since the last decision,
    # wherever they are served. Deferrable requests do not count.
    asked_tps: FloatArray | None = None
    # Prompt tokens that the ready instances have not computed yet.
    backlog: FloatArray | None = None
    # Largest value of a ready instance: KV tokens in use and needed by waiting requests, as a share
    # of its KV tokens
    fullest: FloatArray | None = None
    longest: FloatArray | None = None  # the same: KV tokens that its waiting requests need
    # Mean over ready instances of the larger of two shares: waiting requests of QUEUE_DEPTH, and KV
    # memory in use of KV_SHARE.
    saturation: FloatArray | None = None
    # Histograms [pools, buckets] since the last decision, for a policy with ``wants_signals``; the
    # last bucket has no upper bound
    ttft_counts: IntArray | None = None  # first tokens by TTFT; bounds LATENCY_BOUNDS_S
    tbt_counts: IntArray | None = None  # completed requests by TBT; a tenth of these bounds

    @property
    def present(self) -> IntArray:
        """Return the ready and the starting instances, ``[pools]``."""
        return self.ready + self.starting


@dataclass(frozen=True, slots=True, eq=False)
class Gauge:
    """The signal that a policy follows at a decision, and its thresholds, to show both to users."""

    words: str  # what is measured
    share: bool  # True for a fraction, False for an amount
    values: FloatArray  # by pool, endpoint or service, as the policy decides; NaN: no reading
    out_above: FloatArray | float  # scales out above this
    in_below: FloatArray | float  # scales in below this


@dataclass(frozen=True, slots=True, eq=False)
class ComputedParameter:
    """A parameter that a policy computes, such as a target."""

    what: str  # its name
    values: FloatArray  # [pools]; NaN for a pool without it


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """The targets of a policy and its other requests; every array has shape ``[pools]``.

    None: nothing is requested.
    """

    targets: IntArray  # target of ready + starting instances, clipped to minimum and maximum
    # Soft scale-in: removed instances get no new requests for this many seconds but stay. They
    # come back at once when the target rises again. 0: they drain and are switched off.
    soft_s: float = 0.0
    firm: BoolArray | None = None  # pools without soft scale-in; None: no such pool
    # whether removed instances go to the spot pool instead of off
    lend: BoolArray | None = None
    # most instances that stay lent out; the rest is switched off; None: all stay
    keep_lent: IntArray | None = None
    max_batch: IntArray | None = None  # sequences in a batch from now on (Chiron)
    speed: FloatArray | None = None  # factor on the speed of iterations from now on
    # usable share of the link's bandwidth, for transfers that start from now on
    link_share: FloatArray | None = None
    kv_share: FloatArray | None = None  # usable share of an instance's KV memory from now on
    # Shares of each home region's (row) input tokens by serving region (column) until the next
    # decision, [models, regions, regions] (``Fleet.models``). None or a row of zeros: the router
    # chooses. The router also chooses if a region cannot take a request.
    shares: FloatArray | None = None
    # Input tokens of deferred requests that each region may release in all since time 0, [models,
    # regions] (``Fleet.models``). Urgent requests are released anyway. None: no limit.
    release_tokens: FloatArray | None = None
    # Ready instances that switch from the row's pool to the column's after the targets, which do
    # not count them, [pools, pools]. They drain, need ``switch_s`` seconds more, and then serve.
    moves: IntArray | None = None
    switch_s: float = 0.0
    # Most prompt tokens of an iteration of decode instances that take prompts over; 0: they take
    # none. They do so where more than ``overflow_s`` seconds of prompts are ahead at the prefill
    # instance. None: as before.
    prompt_chunk: IntArray | None = None
    overflow_s: float = np.inf


class Guard(NamedTuple):
    """State of a reactive guard, which adds instances if the load exceeds the plan.

    Its decisions (``policies.parts.guard``) update the arrays. The last row of ``loads`` and of
    ``requested`` is the newest. The names of rows are in that module.
    """

    pools: FloatArray  # [rows, pools] rates and requests of an instance of each pool
    capacity: FloatArray  # [pools, N + 1] load that 0 to N instances serve
    loads: FloatArray  # [decisions, LOAD, pools] of the last ``rise_s``
    loads_s: FloatArray  # [decisions] their times
    memory: FloatArray  # [MEMORY, pools]
    requested: FloatArray  # [decisions, pools] instances requested in the last ``fall_s``
    requested_s: FloatArray  # [decisions] their times
    targets: FloatArray  # [pools] of the last decision
    decided_s: FloatArray  # [1] time of the last decision
    settings: FloatArray  # [SETTINGS] among them the largest growth from one decision to the next
    seen: FloatArray  # [decisions, OBSERVED, pools] observed by the first decisions
    seen_count: IntArray  # [1] rows of ``seen`` that are filled


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A decision that is repeated until ``until_s``, unless ``guard`` requires more instances.

    Until then, the engine need not call the policy while ``targets [pools]`` are ready or starting.
    With ``limits [2, pools]``, it calls the policy if a pool leaves these limits: if the larger of
    its ``utilisation`` and ``load`` is below the first row or above the second.
    """

    until_s: float
    targets: IntArray
    guard: Guard | None = None
    limits: FloatArray | None = None


def actions_of(answer: IntArray | Actions) -> Actions:
    """Return the answer of a policy as ``Actions``; it may be an array of targets only."""
    return answer if isinstance(answer, Actions) else Actions(answer)


class ScalingPolicy(Protocol):
    """A scaling policy with its own state, called every ``interval_s``."""

    name: str
    interval_s: float
    wants_signals: bool = False  # whether observations must contain ``signals``

    def reset(self, fleet: Fleet) -> IntArray:
        """Reset all state; return the instances that must be ready at time 0, ``[pools]``."""
        ...

    def decide(self, observation: Observation) -> IntArray | Actions:
        """Return the target of ready + starting instances per pool, ``[pools]``, or all actions.

        The engine clips counts to the pool's minimum and maximum.
        """
        ...


class Holds(Protocol):
    """Protocol of a policy that states how long a decision stays the same, to speed up replays."""

    def hold(self, time_s: float) -> Hold | None:
        """Return how long the decision at ``time_s`` stays the same; None: until the next one."""
        ...


def holds(policy: ScalingPolicy) -> Holds | None:
    """Return ``policy`` if it has a ``hold`` that matches its ``decide``, else None.

    The class that defines ``decide`` must also define ``hold``. A subclass that overrides only
    ``decide`` must be called at each decision.
    """
    decides = next(cls for cls in type(policy).__mro__ if "decide" in vars(cls))
    return cast(Holds, policy) if "hold" in vars(decides) else None


@runtime_checkable
class ReportsGauge(Protocol):
    """Protocol of a policy that follows one signal and reports it."""

    def gauge(self, observation: Observation) -> Gauge | None:
        """Return the gauge at ``observation``, after ``decide`` on it; None: there is no signal."""
        ...


@runtime_checkable
class ReportsParameters(Protocol):
    """Protocol of a policy that computes targets or ratios, and reports them to users."""

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the present values; called after ``reset``."""
        ...
