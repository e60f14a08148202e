"""Write the hours of deferrable work as a ConfigMap per region, which a batch queue reads."""

from planner.outputs.manifests.common import Document, Export, kubernetes_object, object_metadata
from planner.outputs.moved_work import work_csv
from planner.outputs.object_names import name_of

FILE = "deferrable-work.csv"
NOTES = (
    "Deferrable work: your batch queue must read this file, because no autoscaler does.",
    "Release at most these input tokens per period. Release other work early enough for its "
    "deadline.",
)


def documents(export: Export) -> list[Document]:
    """Return a ConfigMap for each region in which the plan moves deferrable work."""
    plan = export.plan
    config_maps = []
    for region, pools in plan.pools_by_region():
        models = {pool.model for pool in pools}
        rows = [row for row in plan.deferrable_work if row.region == region and row.model in models]
        if rows:
            name = name_of(["deferrable-work", region])
            metadata = object_metadata(export.options, plan.run, region, name)
            body = kubernetes_object("v1", "ConfigMap", metadata, data={FILE: work_csv(rows)})
            config_maps.append(Document(body, "deferrable-work", NOTES))
    return config_maps
