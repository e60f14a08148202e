"""Assign cross-region traffic: in which region each home region's demand is served.

A home region is where demand arises, a serving region where instances serve it.
"""

from dataclasses import replace

import numpy as np
import scipy

from planner.optimizer.problem import HorizonProblem, PlanningProblem
from planner.optimizer.roles import carried_tps
from simulation.arrays import FloatArray, IntArray


def rerouted_tps(problem: HorizonProblem, serving: IntArray) -> FloatArray:
    """Return the tokens/s sent to other regions, ``[period, home region, serving region]``.

    It is the sum over models, each at the peak of its joint demand in the period. ``serving
    [period, model, region, GPU column]`` are the instances that serve.
    """
    total: FloatArray = _sent_by_model(problem, serving).sum(axis=1)
    return total


def shares_planned(problem: HorizonProblem, serving: IntArray) -> FloatArray:
    """Return where home traffic is served: ``[period, model, home region, serving region]``.

    The values are shares of the home region's traffic at the peak of the model's joint demand. They
    add up to 1. If a home region sends nothing elsewhere, all its shares are 0: the simulator then
    routes by latency, home first. ``serving [period, model, region, GPU column]`` are the instances
    that serve.
    """
    sent = _sent_by_model(problem, serving)
    peaks = np.stack([_demand_at_peak(window) for window in problem.windows])[..., None]
    away = np.divide(sent, peaks, out=np.zeros_like(sent), where=peaks > 0)
    share_away = away.sum(axis=3, keepdims=True)
    share_at_home = np.where(share_away > 0, np.maximum(1.0 - share_away, 0.0), 0.0)
    at_home = np.eye(sent.shape[-1]) * share_at_home
    shares: FloatArray = away + at_home
    return shares


def _demand_at_peak(window: PlanningProblem) -> FloatArray:
    """Return the tokens/s at the peak of each model's joint demand, ``[model, home region]``."""
    peak = window.demand_tps.sum(axis=1).argmax(axis=1)
    return np.take_along_axis(window.demand_tps, peak[:, None, None], axis=2)[..., 0]


def _sent_by_model(problem: HorizonProblem, serving: IntArray) -> FloatArray:
    """Return the tokens/s sent elsewhere, ``[period, model, home region, serving region]``.

    Only demand beyond a region's capacity is sent, to regions with free capacity.
    ``problem.reroute`` limits the share of a home region's demand on each route. No instance is
    assumed lost.
    """
    first = problem.first
    regions = len(first.regions)
    sent = np.zeros((len(serving), len(first.models), regions, regions))
    for period, window in enumerate(problem.windows):
        # The weaker of prefill and decode limits what a region serves.
        served = carried_tps(replace(window, spare=0), serving[period]).min(axis=0)
        for model, peak in enumerate(_demand_at_peak(window)):  # peak, missing, free: by region
            missing = np.maximum(0.0, peak - served[model])
            free = np.maximum(0.0, served[model] - peak)
            if not missing.any():
                continue
            if problem.reroute is None:
                sent[period, model] = _assign_in_order(missing, free)
            else:
                max_sent = np.minimum(1.0, problem.reroute) * peak[:, None]
                sent[period, model] = _cross_region_flow(peak, served[model], max_sent)
    return sent


def _assign_in_order(missing: FloatArray, free: FloatArray) -> FloatArray:
    """Return the tokens/s ``[home region, serving region]`` sent to regions with free capacity.

    ``missing [home region]`` is to be sent, and ``free [serving region]`` is the free capacity.
    Regions are filled in order. Both arrays are changed in place.
    """
    sent = np.zeros((len(missing), len(free)))
    for home in np.flatnonzero(missing):
        for other in np.flatnonzero(free):
            sent[home, other] = min(missing[home], free[other])
            missing[home] -= sent[home, other]
            free[other] -= sent[home, other]
    return sent


def _cross_region_flow(demand: FloatArray, served: FloatArray, max_sent: FloatArray) -> FloatArray:
    """Return the tokens/s ``[home region, serving region]`` to send so that most demand is served.

    Of all ways to serve that much of ``demand [home region]`` within the capacities ``served
    [region]``, it sends least to other regions. ``max_sent [home region, serving region]`` limits
    each route. Traffic served at home is not included.
    """
    regions = len(demand)
    home = np.eye(regions, dtype=bool)
    upper = np.where(home, demand[:, None], max_sent)
    # Rows that sum the flows [home, serving region] by home region, and by serving region.
    out_of_home = np.kron(np.eye(regions), np.ones(regions))
    into_serving = np.kron(np.ones(regions), np.eye(regions))
    # Serving counts 1, and serving at home 2, so traffic leaves home only if that serves more.
    flow = scipy.optimize.linprog(
        np.where(home, -2.0, -1.0).ravel(),
        A_ub=np.concatenate([out_of_home, into_serving]),
        b_ub=np.concatenate([demand, served]),
        bounds=np.stack([np.zeros(regions * regions), upper.ravel()], axis=1),
    )
    sent: FloatArray = np.asarray(flow.x).reshape(regions, regions)
    return np.where(~home & (sent > 1e-6 * demand.max()), sent, 0.0)
