"""Window by window at equal attainment of replayed requests: what each granularity holds."""

import sys
import time

import numpy as np

from bench.provision.services import LIMITS, PHASES, device_bytes, of_service, trace
from planner.inputs.catalogue import hardware
from simulation.provisioning.over_time import over_time
from simulation.provisioning.replay import Requests
from simulation.provisioning.windows import SampledWindows, Windows, windows_of
from simulation.provisioning.workload import PhaseLoad

WINDOW_S = 10.0
STARTUP_S = 30.0  # of a whole replica, "tens of seconds" (section 1 of the source)
ATTAINMENT = 0.95
WEEK = 60_480


def courses(model: str, gpu: str, rate: float) -> list[dict[str, object]]:
    """Return the plans of Azure's conversations scaled to ``rate``, by windows of 10 s.

    Each window is planned on the one before.
    """
    requests = trace("azure").at_rate(rate)
    windows = windows_of(requests.arrival_s, requests.isl, requests.osl, WINDOW_S)
    rows: list[dict[str, object]] = []
    for phase in PHASES:
        service = PhaseLoad(
            hardware.shape(model), hardware.gpu(gpu), phase, rate,
            float(requests.isl.mean()), float(requests.osl.mean()), LIMITS["azure"][phase],
        )  # fmt: skip
        begun = time.perf_counter()
        came = Requests(
            requests.arrival_s, requests.isl.astype(np.int64), requests.osl.astype(np.int64)
        )
        stations = len(of_service(service).names)
        judge = SampledWindows(windows, came, service, stations, device_bytes(gpu))
        courses = over_time(
            windows, service, of_service, device_bytes(gpu), startup_s=STARTUP_S,
            attainment=ATTAINMENT, levels=("model", "operator"), sampled_windows=judge,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        coarse, fine = courses["model"], courses["operator"]
        row: dict[str, object] = {
            "model": model, "gpu": gpu, "phase": phase, "rate": rate, "windows": coarse.met.size,
            "seconds": seconds, "replayed_windows": judge.picked.size,
        }  # fmt: skip
        for name, course in courses.items():
            row |= {
                f"{name}_gpu_hours": course.gpu_hours(WINDOW_S),
                f"{name}_kwh": course.kwh(WINDOW_S),
                f"{name}_memory_gb": float(course.memory_bytes.mean() / 1e9),
                f"{name}_attainment": course.attainment,
                f"{name}_by_means": course.attainment_by_means,
                f"{name}_as_whole": float(
                    np.mean(
                        [plan is not None and plan[0].replicas is not None for plan in course.plans]
                    )
                ),
                f"{name}_headroom": course.headroom,
            }
        row |= {
            "gpus": 1 - fine.gpu_hours(WINDOW_S) / coarse.gpu_hours(WINDOW_S),
            "energy": 1 - fine.kwh(WINDOW_S) / coarse.kwh(WINDOW_S),
            "memory": 1 - float(fine.memory_bytes.mean() / coarse.memory_bytes.mean()),
        }
        rows.append(row)
        print(
            f"{model} on {gpu}, {phase}, Azure 2023 at {rate:.0f}/s in {coarse.met.size} windows: "
            f"GPU-hours {coarse.gpu_hours(WINDOW_S):.1f} > {fine.gpu_hours(WINDOW_S):.1f}, kWh "
            f"{coarse.kwh(WINDOW_S):.2f} > {fine.kwh(WINDOW_S):.2f}, attainment "
            f"{coarse.attainment:.1%} / {fine.attainment:.1%}, headroom {coarse.headroom:.0%} / "
            f"{fine.headroom:.0%}, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return rows


def week_seconds(model: str = "llama-3.1-70b", gpu: str = "H100-SXM") -> float:
    """Return the seconds to replan a week of 10 s windows by operators.

    The phase is decode, with a daily wave.
    """
    rng = np.random.default_rng(1)
    day = 1 + 0.6 * np.sin(2 * np.pi * np.arange(WEEK) * WINDOW_S / 86_400)
    rate = rng.poisson(30 * day * WINDOW_S) / WINDOW_S
    few = rng.poisson(1155, WEEK) * rng.lognormal(0, 0.1, WEEK)
    windows = Windows(WINDOW_S, rate, few, rng.normal(211, 15, WEEK))
    service = PhaseLoad(
        hardware.shape(model), hardware.gpu(gpu), "decode", 30.0, 1155, 211,
        LIMITS["azure"]["decode"],
    )  # fmt: skip
    begun = time.perf_counter()
    over_time(
        windows, service, of_service, device_bytes(gpu), startup_s=STARTUP_S, headroom=0.2,
        levels=("operator",),
    )  # fmt: skip
    return time.perf_counter() - begun
