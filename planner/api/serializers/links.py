from operator import attrgetter
from typing import Any

from rest_framework import serializers
from rest_framework.reverse import reverse


class LinkField(serializers.URLField):
    """The address of ``view`` whose argument ``name`` is an attribute of the row.

    ``attribute`` may be a path. The address is null if the attribute is.
    """

    def __init__(self, view: str, name: str, attribute: str = "pk", **more: Any) -> None:
        super().__init__(source="*", read_only=True, **more)
        self._view, self._name, self._value_of = f"api:{view}", name, attrgetter(attribute)

    def to_representation(self, value: Any) -> Any:
        try:
            named = self._value_of(value)
        except AttributeError:  # a related row that is None
            named = None
        if named is None:
            return None
        request = self.context.get("request")
        return reverse(self._view, kwargs={self._name: named}, request=request)
