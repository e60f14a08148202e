"""Describe the hardware for policies that scale modules: layers, links and relative speeds."""

from __future__ import annotations

import numpy as np

from planner.domain.study import Study
from planner.policies.context import Modules
from simulation.modules.parts import layer_bytes
from simulation.performance.memory import weight_bytes
from simulation.performance.profile import iteration_s

DECODES = 32.0  # batch size at which two GPU types are compared
LINK_BYTES_S = 25e9  # PCIe 4.0 x16 as copies reach it, if the GPU's link is unknown


def modules_of_pools(study: Study) -> tuple[Modules | None, ...]:
    """Return the modules of each pool; None if the shape of the model is not known."""
    hardware, lengths = study.hardware, study.traffic.lengths
    out: list[Modules | None] = []
    for m, r, g in hardware.pool_index:
        model, gpu, profile = hardware.models[m], hardware.gpus[g], hardware.profiles[m, g]
        shape = model.shape
        if shape is None:
            out.append(None)
            continue
        weights = weight_bytes(shape, hardware.sections[m, g].precision)
        attention, rest = layer_bytes(shape, weights)
        isl, osl = lengths[m]
        context = DECODES * (float(isl.mean()) + float(osl.mean()) / 2)
        at_home = float(iteration_s(profile, DECODES, context, 0.0, 0.0))
        near = profile.tp * 2 <= gpu.gpus_per_node  # two replicas fit into one node
        link = gpu.link_bytes_s if near else gpu.network_bytes_s
        paces = np.full(len(hardware.pool_index), np.nan)
        for q, (_, other_r, other_g) in enumerate(hardware.pool_index):
            other = hardware.gpus[other_g]
            there = hardware.profiles.get((m, other_g))
            if other_r != r:
                continue
            if other.name == gpu.name:
                paces[q] = 1.0
            elif there is not None and there.tp == profile.tp:
                paces[q] = at_home / float(iteration_s(there, DECODES, context, 0.0, 0.0))
            elif gpu.bandwidth_bytes_s and other.bandwidth_bytes_s:  # bounds decoding
                paces[q] = other.bandwidth_bytes_s / gpu.bandwidth_bytes_s
        out.append(
            Modules(
                layers=shape.layers,
                layer_bytes=attention + rest,
                attention_share=attention / (attention + rest),
                kv_layer_token_bytes=model.kv_bytes_per_token / shape.layers,
                hidden_bytes=2.0 * shape.hidden,
                link_bytes_s=link or gpu.network_bytes_s or LINK_BYTES_S,
                relative_speeds=paces,
            )
        )
    return tuple(out)
