"""The harness finds what a policy must not do, and every policy of ours passes it."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulation.policies.chiron import Chiron
from simulation.policies.feedback import Feedback
from simulation.policies.hpa import Hpa, Keda
from simulation.policies.kv_aware import KvAware
from simulation.policies.parts.ratio import PdRatio
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.proportional import SIGNALS, Proportional
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.policies.utilization_gated import UtilizationGated
from simulation.policies.wrappers.safety_layer import SafetyLayer
from simulation.policy import Actions
from simulation.policy_check import ProtocolBroken, check

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
OURS: dict[str, Callable[[], object]] = {
    "reactive": UnifiedReactive,
    "hpa": Hpa,
    "hpa-gpu": lambda: Hpa(metric="gpu"),
    "hpa-queue": lambda: Hpa(metric="queue", target=5.0),
    "hpa-tokens": lambda: Hpa(metric="tokens", target=2_000.0),
    "keda": Keda,
    "keda-to-none": lambda: Keda(metric="concurrency", target=20.0, min_replicas=0),
    "kv-aware": KvAware,
    "chiron": lambda: Chiron((128.0, 16.0)),
    **{
        s: lambda s=s: Proportional(s, 500.0 if "tps" in s else 0.5)  # type: ignore[misc]
        for s in SIGNALS
    },
    "observed": lambda: Proportional(
        "decode-tps", 500.0, ratio=PdRatio("observed", prefill_tps=1000.0, decode_tps=500.0)
    ),
    "ttft": lambda: Feedback("ttft"),
    "tbt": lambda: Feedback("tbt"),
    "both": lambda: SafetyLayer(
        Proportional("decode-tps", 500.0), (Feedback("ttft"), Feedback("tbt"))
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_ours_keep_to_the_protocol(name: str) -> None:
    check(OURS[name])  # type: ignore[arg-type]


@pytest.mark.parametrize("forecast", [None, np.full((3, 1), 50.0)])
def test_plans_keep_to_the_protocol(forecast: np.ndarray | None) -> None:
    def make() -> UtilizationGated:
        return UtilizationGated(
            FixedSchedule([0.0, 300.0], [[3], [5]]), period_s=300.0, forecast_tps=forecast
        )

    check(make, fleets=("one",))


def test_the_example_of_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("my_policy", None)
    from my_policy import QueueLength  # type: ignore[import-not-found]

    check(QueueLength)
    check(lambda: QueueLength(per_instance=2, calm_s=60.0))


class Steady(Static):
    """A right one, to be spoiled."""

    def __init__(self) -> None:
        super().__init__([2])

    def reset(self, fleet):
        self._counts = np.array([pool.initial for pool in fleet.pools])
        return self._counts.copy()


class WrongShape(Steady):
    def decide(self, observation):
        return np.array([1, 2, 3])


class NotAnArray(Steady):
    def decide(self, observation):
        return [1]


class Fractions(Steady):
    def decide(self, observation):
        return observation.ready * 0.5


class Negative(Steady):
    def decide(self, observation):
        return self._counts - 5


class Remembers(Steady):
    def decide(self, observation):
        self._seen = getattr(self, "_seen", 0) + 1
        return self._counts + self._seen // 20


class Scribbles(Steady):
    def decide(self, observation):
        observation.ready[:] = 0
        return self._counts.copy()


class TripsOnEmptyPools(Steady):
    def decide(self, observation):
        return np.array(
            [int(w) // int(r) for w, r in zip(observation.waiting, observation.ready, strict=False)]
        )


class Nan(Steady):
    def decide(self, observation):
        return Actions(self._counts.copy(), speed=np.full(len(self._counts), np.nan))


class ByChance(Steady):
    def decide(self, observation):
        return self._counts + np.random.default_rng().integers(0, 9, len(self._counts))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (WrongShape, "shape"), (NotAnArray, "give an array"), (Fractions, "not whole"),
        (Negative, "below 0"), (Remembers, "Reset must forget"), (Scribbles, "changed the obs"),
        (TripsOnEmptyPools, "ZeroDivisionError"), (Nan, "speed is not a finite"),
        (ByChance, "depend on chance"),
    ],
)  # fmt: skip
def test_what_no_policy_may_do_is_found(wrong: type, words: str) -> None:
    check(Steady, fleets=("one",))
    with pytest.raises(ProtocolBroken, match=words):
        check(wrong, fleets=("one",))
