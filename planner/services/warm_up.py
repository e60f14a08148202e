"""Load in the background what the first visitor of a process would wait for."""

import threading

import numpy as np

from planner.inputs import catalogue
from planner.inputs.catalogue.rule_based_profiles import modelled_profiles
from planner.services.kernel_compilation import wait_until_compiled
from simulation.fleet import Tier
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.workload import Workload

DELAY_S = 2.0  # delay, since the start of the product comes first


def warm_soon() -> None:
    """Call ``warm`` in a thread soon after the process starts to respond."""
    timer = threading.Timer(DELAY_S, warm)
    timer.daemon = True
    timer.start()


def warm() -> None:
    """Load the catalogue and the closed-form sizing code, so that first requests are fast.

    At the first start of a release, wait until the simulator is compiled, so that two processes do
    not compile the same.
    """
    catalogue.regions()
    catalogue.prices()
    catalogue.intervals()
    modelled_profiles()
    wait_until_compiled(lambda *_: None)
    compile_closed_forms()


def compile_closed_forms() -> None:
    """Size one replica by closed forms, so that their code is compiled."""
    profile = next(iter(catalogue.profiles().values()))
    work = Workload(np.array([100]), np.array([10]))
    size_pool(profile, work, Tier("t", ttft_s=10.0, tbt_s=1.0), explain=False, precision=0.1)
