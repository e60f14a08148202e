"""What is sent from region to region: where each home region's demand is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy

from planner.optimizer.problem import HorizonProblem, PlanningProblem
from planner.optimizer.sides import carried_tps
from simulation.arrays import FloatArray, IntArray


def rerouted(problem: HorizonProblem, serving: IntArray) -> FloatArray:
    """Tokens/s sent from home to elsewhere at each period's joint peak, ``[p, r, r]``, summed over
    models."""
    total: FloatArray = _sent(problem, serving).sum(axis=1)
    return total


def shares_planned(problem: HorizonProblem, serving: IntArray) -> FloatArray:
    """Where each model's tokens of each home region (row) are to be served, as shares of them,
    ``[p, l, r, r]``: as at the joint peak; 0 for those of which none are sent elsewhere."""
    sent = _sent(problem, serving)
    peaks = np.stack([_at_peak(window) for window in problem.windows])[..., None]
    away = np.divide(sent, peaks, out=np.zeros_like(sent), where=peaks > 0)
    share = away.sum(axis=3, keepdims=True)
    at_home = np.eye(sent.shape[-1]) * np.where(share > 0, np.maximum(1.0 - share, 0.0), 0.0)
    shares: FloatArray = away + at_home
    return shares


def _at_peak(window: PlanningProblem) -> FloatArray:
    """Tokens/s of each model and home region as the model's joint demand is highest, ``[l, r]``."""
    peak = window.demand_tps.sum(axis=1).argmax(axis=1)
    return np.take_along_axis(window.demand_tps, peak[:, None, None], axis=2)[..., 0]


def _sent(problem: HorizonProblem, serving: IntArray) -> FloatArray:
    """Tokens/s by model, ``[p, l, r, r]``: only what a region lacks goes to those with room, within
    ``reroute``, while none of the instances is gone."""
    first = problem.first
    regions = len(first.regions)
    out = np.zeros((len(serving), len(first.models), regions, regions))
    for period, window in enumerate(problem.windows):
        served = carried_tps(replace(window, spare=0), serving[period]).min(axis=0)
        for model, peak in enumerate(_at_peak(window)):
            lacks = np.maximum(0.0, peak - served[model])
            room = np.maximum(0.0, served[model] - peak)
            if not lacks.any():
                continue
            if problem.reroute is None:
                out[period, model] = _in_order(lacks, room)
            else:
                most = np.minimum(1.0, problem.reroute) * peak[:, None]
                out[period, model] = _within(peak, served[model], most)
    return out


def _in_order(lacks: FloatArray, room: FloatArray) -> FloatArray:
    """What regions lack ``[r]`` put where there is room ``[r]``, in their order, ``[r, r]``."""
    sent = np.zeros((len(lacks), len(room)))
    for home in np.flatnonzero(lacks):
        for other in np.flatnonzero(room):
            sent[home, other] = min(lacks[home], room[other])
            lacks[home] -= sent[home, other]
            room[other] -= sent[home, other]
    return sent


def _within(demand: FloatArray, served: FloatArray, most: FloatArray) -> FloatArray:
    """As much of ``demand`` ``[r]`` as what regions serve allows, the least of it away from home
    and at most ``most`` ``[r, r]`` on each way; what is away, ``[r, r]``."""
    regions = len(demand)
    home, away = np.eye(regions, dtype=bool), ~np.eye(regions, dtype=bool)
    upper = np.where(home, demand[:, None], np.where(away, most, 0.0))
    rows = np.kron(np.eye(regions), np.ones(regions))  # of each home
    into = np.kron(np.ones(regions), np.eye(regions))  # of each that serves
    flow = scipy.optimize.linprog(
        np.where(home, -2.0, -1.0).ravel(),
        A_ub=np.concatenate([rows, into]),
        b_ub=np.concatenate([demand, served]),
        bounds=np.stack([np.zeros(regions * regions), upper.ravel()], axis=1),
    )
    sent: FloatArray = np.asarray(flow.x).reshape(regions, regions)
    return np.where(away & (sent > 1e-6 * demand.max()), sent, 0.0)
