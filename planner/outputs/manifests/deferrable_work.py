"""Write the hours of deferrable work as a ConfigMap per region, which a batch queue reads."""

from planner.outputs.manifests.common import OURS, Document, Export
from planner.outputs.moved_work import work_csv
from planner.outputs.object_names import label_of, name_of

FILE = "deferrable-work.csv"
NOTES = (
    "Deferrable work: your batch queue must read this file, because no autoscaler does.",
    "Release at most these input tokens per period. Release work that was not forecast in time "
    "for its deadline.",
)


def documents(export: Export) -> list[Document]:
    """Return a ConfigMap for each region in which the plan moves deferrable work."""
    plan, options = export.plan, export.options
    config_maps = []
    for region, pools in plan.by_region():
        models = {pool.model for pool in pools}
        rows = [row for row in plan.work if row.region == region and row.model in models]
        if not rows:
            continue
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name_of(["deferrable-work", region]),
                **({"namespace": options.namespace} if options.namespace else {}),
                "labels": {
                    "app.kubernetes.io/managed-by": OURS,
                    f"{OURS}/run": str(plan.run),
                    f"{OURS}/region": label_of(region),
                },
            },
            "data": {FILE: work_csv(rows)},
        }
        config_maps.append(Document(body, "deferrable-work", NOTES))
    return config_maps
