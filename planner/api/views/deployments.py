from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.schema import operation
from planner.api.views.active_plans import DeploymentNames
from planner.outputs.object_names import stored_names
from planner.services.deployments import deployment_names_save


class DeploymentNamesView(ApiView):
    @operation({200: DeploymentNames})
    def get(self, request: Request) -> Response:
        """Get the names of deployments in exports, by their default name."""
        return Response({"names": stored_names()})

    @operation(
        {200: DeploymentNames}, 400, 403,
        request=DeploymentNames, examples={"One": {"names": {"llama-h100-us-east": "chat"}}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Name deployments; an empty name restores the default name.

        Names of other deployments stay.
        """
        sent = valid(DeploymentNames(data=request.data))
        deployment_names_save(names=sent["names"], user=self.user)
        return Response({"names": stored_names()})
