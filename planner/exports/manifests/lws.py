"""LeaderWorkerSet: a group of pods for each replica, and the timetable as a ScaledObject of it."""

from __future__ import annotations

from math import ceil

from planner.exports.manifests import keda
from planner.exports.manifests.common import (
    Document,
    Export,
    Target,
    heading,
    metadata,
    place_words,
    with_head,
)
from planner.exports.manifests.llmd import replicas_at
from planner.exports.plans import Pool

API, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"


def documents(export: Export) -> list[Document]:
    documents: list[Document] = []
    for pool in export.plan.pools:
        documents += [_set(export, pool), keda.scaled(export, pool, Target(KIND, pool.name, API))]
    notes = (
        "A group of pods for each replica, as many as it takes nodes; apply server-side to a set "
        "that exists, as images and commands are not in here.",
        *keda.words(export.plan),
    )
    return with_head(documents, heading(export, *notes))


def pods_of(pool: Pool) -> int:
    """Nodes that one instance takes: as many as its GPUs fill, and one where that is not known."""
    return ceil(pool.gpus / (pool.facts.gpus_per_node or pool.gpus))


def _set(export: Export, pool: Pool) -> Document:
    body = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata(export, pool),
        "spec": {
            "replicas": replicas_at(export, pool),
            "leaderWorkerTemplate": {"size": pods_of(pool), "workerTemplate": {}},
        },
    }
    return Document(body, "lws", (place_words(pool),))
