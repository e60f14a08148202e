"""What the first visitor of a process would wait for, done beforehand and behind the scenes."""

from __future__ import annotations

import threading

import numpy as np

from planner import catalogue
from planner.catalogue.modelled import modelled
from planner.services.compiling import wait_until_compiled
from simulation.fleet import Tier
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.workload import Workload

AFTER_S = 2.0  # the start of the product comes first


def warm_soon() -> None:
    """In a thread of its own, once the process has begun to answer."""
    timer = threading.Timer(AFTER_S, warm)
    timer.daemon = True
    timer.start()


def warm() -> None:
    """Read the catalogue and load closed forms; the simulator's compiler, at a first start, comes
    before, since it leaves them compiled on disk."""
    catalogue.regions()
    catalogue.prices()
    catalogue.fits()
    modelled()
    wait_until_compiled(lambda *_: None)
    closed_forms()


def closed_forms() -> None:
    """Size one replica without simulating, so that what this compiles is compiled."""
    profile = next(iter(catalogue.profiles().values()))
    work = Workload(np.array([100]), np.array([10]))
    size_pool(profile, work, Tier("t", ttft_s=10.0, tbt_s=1.0), explain=False, precision=0.1)
