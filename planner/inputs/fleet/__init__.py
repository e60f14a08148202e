"""Read what runs today: Kubernetes objects, Helm values and launch lines of engines.

It is the inverse of ``planner/outputs/manifests``.
"""

from planner.inputs.fleet.pools import RunningPool, Trigger
from planner.inputs.fleet.reading import read_fleet
