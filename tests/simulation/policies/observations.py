"""Observations made by hand."""

from typing import Any

import numpy as np

from simulation.policy import Observation, Signals

INTEGERS = ("preemptions", "failed")
OF_INSTANCES = ("backlog", "fullest", "longest", "saturation")
RATES = ("busy", "sm_activity", "prefill_tps", "decode_tps", "batch", "evicted_tps")


def signals(pools: int, **readings: Any) -> Signals:
    """Nothing happened, but for what is given."""
    fields: dict[str, Any] = {}
    for name in Signals.__dataclass_fields__:
        kind = np.int64 if name in INTEGERS else np.float64
        empty = 0 if name in RATES or name in INTEGERS else np.nan
        value = readings.pop(name, empty)
        fields[name] = np.broadcast_to(np.asarray(value, kind), (pools,)).copy()
    assert not readings, readings
    return Signals(**fields)


def seen(time_s: float, ready: Any, **fields: Any) -> Observation:
    """``ready`` instances by pool; the rest is 0, nothing measured, unless given."""
    count = np.atleast_1d(np.asarray(ready, np.int64))
    pools = len(count)
    of_signals = {k: fields.pop(k) for k in list(fields) if k in Signals.__dataclass_fields__}

    def column(name: str, kind: Any = np.int64) -> Any:
        return np.broadcast_to(np.asarray(fields.pop(name, 0), kind), (pools,)).copy()

    observation = Observation(
        time_s=time_s,
        ready=count,
        starting=column("starting"),
        draining=column("draining"),
        utilisation=column("utilisation", np.float64),
        waiting=column("waiting"),
        input_tps=column("input_tps", np.float64),
        signals=signals(pools, **of_signals),
        deferred=column("deferred"),
        spare=column("spare"),
        load=column("load", np.float64),
        asked_tps=column("asked_tps", np.float64),
        **{name: column(name, np.float64) for name in OF_INSTANCES},
        **{name: fields.pop(name, None) for name in ("ttft_counts", "tbt_counts")},
    )
    assert not fields, fields
    return observation
