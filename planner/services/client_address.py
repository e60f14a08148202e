"""Find the network address of a client, for logs and for every limit that counts by address."""

from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network, ip_address

from django.conf import settings
from django.http import HttpRequest

MAX_ADDRESS_CHARACTERS = 45  # characters of an IPv6 address that holds an IPv4 one


def client_address(request: HttpRequest) -> str:
    """Return the IP address that ``request`` comes from.

    Behind the proxy that terminates TLS (HEADROOM_HTTPS), it is the last entry of X-Forwarded-For,
    which that proxy wrote. Other forwarded headers are ignored, since a client can set them.
    """
    # Without a proxy the client could write this header itself.
    forwarded = request.headers.get("X-Forwarded-For", "") if settings.HTTPS else ""
    _, _, last_entry = forwarded.rpartition(",")
    address: str = last_entry.strip() or request.META.get("REMOTE_ADDR", "")
    return address[:MAX_ADDRESS_CHARACTERS]


def client_network(request: HttpRequest) -> str:
    """Return the key for rate limits: the IP address, or the /64 network of an IPv6 address.

    One IPv6 client usually owns a whole /64 and could use another address for each attempt.
    """
    address = client_address(request)
    with suppress(ValueError):
        parsed = ip_address(address)
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
            return str(IPv6Network((int(parsed), 64), strict=False))
    return address
