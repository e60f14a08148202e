"""Run the decision code of NVIDIA's Planner as a policy of the simulator.

The package ``ai-dynamo`` comes from the package index. The parts of it that estimate the speed of
engines need ``aisimulate``, whose package holds no code there. They are not called: the capacity of
an engine is that of the simulated profile on both sides.
"""

import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.dynamo_planner import DynamoPlanner
from simulation.policy import Observation

VERSION = "1.6.1"
PACKAGES = (f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}", "msgspec", "filterpy",
            "pmdarima==2.1.1", "scikit-learn", "joblib", "threadpoolctl")  # fmt: skip
FOLDER = Path(tempfile.gettempdir()) / f"headroom-ai-dynamo-{VERSION}"
MOST_UNUSED = 20


class UnusedPackage(ModuleType):
    """A package that the Planner imports and that no decision here calls."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return object


def install() -> str:
    """Make the package importable; return "" or why that is not possible."""
    if not (FOLDER / "dynamo").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
                   str(FOLDER), *PACKAGES]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return f"pip cannot install {PACKAGES[0]}: {done.stderr.strip().splitlines()[-1:]}"
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    for _ in range(MOST_UNUSED):
        try:
            import_module("dynamo.planner.core.state_machine")
            import_module("dynamo.planner.core.load.predictors")
        except ModuleNotFoundError as problem:
            if not problem.name or problem.name.startswith("dynamo"):
                return f"{PACKAGES[0]} does not import: {problem}"
            sys.modules[problem.name] = UnusedPackage(problem.name)
        except ImportError as problem:
            return f"{PACKAGES[0]} does not import: {problem}"
        else:
            return ""
    return f"{PACKAGES[0]} imports more than {MOST_UNUSED} other packages"


class RealPlanner(DynamoPlanner):
    """The Planner of the package in place of ours, one per unit, on the same observations."""

    def reset(self, fleet: Fleet) -> IntArray:
        counts = super().reset(fleet)
        self._fleet = fleet
        self._real = [self._state(unit) for unit in self._units]
        return counts

    def decide(self, observation: Observation) -> IntArray:
        targets = observation.ready + observation.starting
        types = import_module("dynamo.planner.core.types")
        for unit, (state, predictor) in zip(self._units, self._real, strict=True):
            roles = ("prefill", "decode") if len(unit) > 1 else ("decode",)
            counts = {}
            for role, p in zip(roles, unit, strict=True):
                ready, starting = int(observation.ready[p]), int(observation.starting[p])
                counts |= {f"ready_num_{role}": ready, f"pending_num_{role}": starting,
                           f"expected_num_{role}": ready + starting}  # fmt: skip
            state.begin_tick()
            state.observe_worker_counts(types.WorkerCounts(**counts))
            decision = (
                self._demand(state, predictor, unit, observation, types)
                if self.target == "sla"
                else state.advance_load(types.FpmObservations(**{
                    role: self._engines(role, p, observation)
                    for role, p in zip(roles, unit, strict=True)
                }))
            )  # fmt: skip
            for role, p in zip(roles, unit, strict=True):
                count = getattr(decision, f"num_{role}", None)
                if count is not None:
                    targets[p] = count
        return targets

    def _state(self, unit: tuple[int, ...]) -> tuple[Any, Any]:
        """Return a Planner with the settings of this policy, and its predictor."""
        config_of = import_module("dynamo.planner.config.planner_config").PlannerConfig
        types = import_module("dynamo.planner.core.types")
        config = config_of(
            environment="virtual",
            mode="disagg" if len(unit) > 1 else "agg",
            optimization_target=self.target,
            load_predictor=self.predictor,
            max_gpu_budget=-1 if self.max_gpus is None else int(self.max_gpus),
            min_endpoint=self.min_replicas,
            max_throughput_scaling_replicas=self.max_step,
            **({
                "prefill_scale_up_queue_tokens": int(self.prefill_tokens[0]),
                "prefill_scale_down_queue_tokens": int(self.prefill_tokens[1]),
                "decode_scale_up_kv_rate": 100 * self.decode_kv[0],
                "decode_scale_down_kv_rate": 100 * self.decode_kv[1],
            } if self.target == "load" else {}),
        )  # fmt: skip
        able = [
            types.EngineCapabilities(
                num_gpu=int(self._gpus[p]),
                max_num_batched_tokens=self._fleet.pools[p].profile.max_batch_tokens,
                context_length=int(self.context_tokens),
                max_kv_tokens=self._fleet.pools[p].profile.kv_capacity_tokens,
            )
            for p in unit
        ]
        state = import_module("dynamo.planner.core.state_machine").PlannerScalingState
        if self.target == "sla":  # the estimator of engines is replaced below
            module = import_module("dynamo.planner.core.state_machine")
            module.PlannerEnginePerfModel = lambda **_: None  # type: ignore[attr-defined]
        made = state(config, types.WorkerCapabilities(
            decode=able[-1], prefill=able[0] if len(unit) > 1 else None
        ))  # fmt: skip
        if self.target == "sla":
            rates = [SimpleNamespace(find_engine_capacity_rps=self._capacity_of(p)) for p in unit]
            made.install_regressions(
                **(dict(zip(("prefill", "decode"), rates, strict=True)) if len(unit) > 1
                   else {"agg": rates[0]})
            )  # fmt: skip
        predictors = import_module("dynamo.planner.core.load.predictors").LOAD_PREDICTORS
        return made, predictors[self.predictor](config)

    def _capacity_of(self, p: int) -> Any:
        rps = float(self._capacity[p])
        return lambda **_: SimpleNamespace(rps=rps, ttft_ms=0.0, itl_ms=0.0, eligible=True)

    def _demand(
        self,
        state: Any,
        predictor: Any,
        unit: tuple[int, ...],
        observation: Observation,
        types: Any,
    ) -> Any:
        isl, osl = self.lengths[unit[0]]
        requests = float(observation.input_tps[unit[0]]) / isl * self.interval_s
        predictor.add_data_point(requests)
        return state.advance_throughput_from_prediction(
            types.TrafficObservation(self.interval_s, requests, isl, osl),
            predicted_num_req=predictor.predict_next(),
            predicted_isl=isl,
            predicted_osl=osl,
            predicted_kv_hit_rate=None,
        )

    def _engines(self, role: str, p: int, observation: Observation) -> dict[Any, Any]:
        """Return the metrics of the engines: the fullest as observed, the others idle."""
        metrics = import_module("dynamo.common.forward_pass_metrics")
        kv = self._fleet.pools[p].profile.kv_capacity_tokens
        assert observation.fullest is not None
        assert observation.longest is not None
        out = {}
        for i in range(int(observation.ready[p])):
            held = round(float(observation.fullest[p]) * kv) if i == 0 else 0
            queued = int(observation.longest[p]) if i == 0 else 0
            out[str(i), 0] = metrics.ForwardPassMetrics(
                worker_id=str(i),
                scheduled_requests=metrics.ScheduledRequestMetrics(sum_decode_kv_tokens=held),
                queued_requests=metrics.QueuedRequestMetrics(
                    sum_prefill_tokens=queued if role == "prefill" else 0
                ),
            )
        return out


def share_of_near_decisions(ours: IntArray, real: IntArray, most: int) -> float:
    """Return the share of decisions whose counts differ by at most ``most`` in every pool."""
    return float((np.abs(ours - real).max(axis=1) <= most).mean())
