"""What a load balancer asks: is this process able to serve?"""

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from planner.version import VERSION


@never_cache
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """200 when the database answers, else 503; needs no login and tells nothing private."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"status": "down", "database": "down", "version": VERSION}, status=503)
    return JsonResponse({"status": "ok", "database": "ok", "version": VERSION})
