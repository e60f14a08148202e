from __future__ import annotations

from django.contrib.auth import authenticate
from rest_framework import exceptions, status
from rest_framework.authtoken.models import Token
from rest_framework.parsers import FormParser, JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api import schema
from planner.api.base import ApiView
from planner.api.serializers.accounts import Login, Me, TokenGiven
from planner.api.throttling import AddressThrottle, NameThrottle


class LoginView(ApiView):
    authentication_classes = []
    permission_classes = []
    parser_classes = [JSONParser, FormParser]
    throttle_classes = [AddressThrottle, NameThrottle]

    def get_authenticate_header(self, request: Request) -> str:
        return "Token"  # makes a wrong password 401, as no authentication class is asked

    @schema.login
    def post(self, request: Request) -> Response:
        given = Login(data=request.data)
        given.is_valid(raise_exception=True)
        user = authenticate(request, **given.validated_data)
        if user is None:
            raise exceptions.AuthenticationFailed("The user name or the password is wrong.")
        token, _ = Token.objects.get_or_create(user=user)
        return Response(TokenGiven({"token": token.key}).data)


class MeView(ApiView):
    @schema.me
    def get(self, request: Request) -> Response:
        return Response(Me(self.user).data)


class MyTokenView(ApiView):
    @schema.token_delete
    def delete(self, request: Request) -> Response:
        Token.objects.filter(user=self.user).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)
