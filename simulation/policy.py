"""The protocol of every scaling policy: an observation in, targets or actions out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """What happened since the last control instant; every array has shape ``[pools]``.

    Where nothing was measured (no first token, no ready instance) a mean is NaN and a rate 0.
    """

    busy: FloatArray  # share of the time of ready instances with an iteration running
    sm_activity: FloatArray  # modelled: share of that time the SMs compute (roofline of the batch)
    prefill_tps: FloatArray  # prompt tokens computed a second: those the prefix cache missed
    decode_tps: FloatArray  # output tokens a second
    batch: FloatArray  # mean sequences in the batch of a ready instance
    ttft_s: FloatArray  # mean of the requests whose first token came
    tbt_s: FloatArray  # mean gap between tokens of the requests that completed
    late_first: FloatArray  # share of the first tokens that came after their tier's TTFT limit
    late_done: FloatArray  # share of those completed that passed their TBT or E2E limit
    hit_rate: FloatArray  # share of the prompt tokens admitted that the prefix cache held; NaN off
    evicted_tps: FloatArray  # tokens a second evicted from prefix caches
    preemptions: IntArray
    failed: IntArray  # instances lost to faults


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What a policy may see at a control instant; every array has shape ``[pools]`` unless said."""

    time_s: float  # seconds since the start of the simulation
    ready: IntArray  # instances serving
    starting: IntArray  # asked for, not yet serving
    draining: IntArray  # finishing their requests, taking no new ones
    utilisation: FloatArray  # effective memory: KV tokens in use over KV tokens of ready instances
    waiting: IntArray  # requests routed to the pool and not yet in a batch
    input_tps: FloatArray  # input tokens per second that arrived since the last instant
    signals: Signals | None = None  # only for a policy that asks for them (``wants_signals``)
    deferred: IntArray | None = None  # requests in the NIW queue of the pool's model
    spare: IntArray | None = None  # instances lent out as spot that could come back
    # How full an iteration of the ready instances is, requests that wait counted: the largest of
    # KV tokens over the KV there is, tokens to compute over the token budget, and sequences over
    # the largest batch. From 1 on some request waits.
    load: FloatArray | None = None
    # Input tokens/s that users of the pool's region asked of its model since the last instant,
    # wherever they are served; what can be deferred is left out.
    asked_tps: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gauge:
    """What a rule goes by, one value per decision that it takes: above ``out_above`` it asks for
    more, below ``in_below`` for fewer. NaN where there is nothing to read."""

    words: str
    share: bool  # of something, else an amount
    values: FloatArray
    out_above: FloatArray | float
    in_below: FloatArray | float


@dataclass(frozen=True, slots=True, eq=False)
class InForce:
    """A parameter of a rule that is found rather than given, ``[pools]``; NaN where a pool has
    none."""

    what: str
    values: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """What a policy asks for; every array has shape ``[pools]``. None leaves the usual."""

    targets: IntArray  # instances wanted (ready + starting), clipped to minimum and maximum
    # Scale-in that can be undone: for so many seconds instances taken out get no new requests but
    # stay, and come back at once when the target rises again (D4). 0: they drain and go.
    soft_s: float = 0.0
    firm: BoolArray | None = None  # pools of which none stays for soft_s; None: none such
    lend: BoolArray | None = None  # instances taken out go to the spot pool (E9), not off
    keep_lent: IntArray | None = None  # at most so many stay lent out, the rest goes off; None: all
    max_batch: IntArray | None = None  # sequences in a batch from now on (Chiron)
    speed: FloatArray | None = None  # how many times as fast iterations run from now on (B5)
    link_share: FloatArray | None = None  # of its link's bandwidth, for what it sends from now on
    kv_share: FloatArray | None = None  # of its KV memory that an instance may use from now on
    # [models, regions, regions] (``Fleet.models``) where the input tokens of each home region (row)
    # are to be served until the next answer: its shares. A row of zeros, or None: as the router
    # finds best (E4). A region that cannot take a request gives way to that rule.
    shares: FloatArray | None = None


def actions_of(answer: IntArray | Actions) -> Actions:
    """What a policy answered, as actions."""
    return answer if isinstance(answer, Actions) else Actions(answer)


class ScalingPolicy(Protocol):
    """Called every ``interval_s``; holds its own state, told to start afresh by ``reset``."""

    name: str
    interval_s: float
    wants_signals: bool = False  # whether observations are to carry ``signals``

    def reset(self, fleet: Fleet) -> IntArray:
        """Forget everything; return the instances wanted ready at time 0, shape ``[pools]``."""
        ...

    def decide(self, observation: Observation) -> IntArray | Actions:
        """Instances wanted per pool (ready + starting), shape ``[pools]``, or all a policy may ask
        for; the engine clips counts to the pool's minimum and maximum."""
        ...


@runtime_checkable
class Gauged(Protocol):
    """A policy that goes by one signal and says which, so that a signal that never moves can be
    told beside the policy's figures."""

    def gauge(self, observation: Observation) -> Gauge | None:
        """What it reads off ``observation``; asked after ``decide`` on the same."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A policy whose targets or ratios were found: it says which are in force, for whoever wants
    to copy them."""

    def in_force(self) -> tuple[InForce, ...]:
        """As they are now; asked after ``reset``."""
        ...
