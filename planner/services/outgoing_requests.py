"""Make requests to other servers, only to addresses that the operator has listed.

A host is resolved once. Each of its IP addresses must be public, or in a listed network. The
connection goes to an address that was checked, so a name server cannot change it afterwards. No
redirect is followed, and no proxy of the environment is used.
"""

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from planner.errors import PlannerError

TIMEOUT_S = 10.0
PORTS = {"https": 443, "http": 80}


class Unreachable(PlannerError):
    """An error for a server that did not respond; a later try may work."""


class AddressNotAllowed(PlannerError):
    """An error for an address that is not on the allow-list."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """The addresses that the operator allows."""

    origins: frozenset[tuple[str, str, int]]  # (scheme, host, port)
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]  # private ones of the hosts
    setting: str  # name of the setting that lists them


@dataclass(frozen=True, slots=True)
class Answer:
    """The status of a response and the first bytes of its body."""

    status: int
    body: bytes


def parse_allowed(entries: Sequence[str], setting: str = "HEADROOM_WEBHOOKS") -> AllowList:
    """Return the allow-list with the ``entries`` of a setting.

    An entry is a host (``hooks.slack.com``, for https), an origin (``http://chat.example:8065``) or
    a network (``10.0.0.0/8``).
    """
    origins, networks = set(), []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry))
        except ValueError:
            origins.add(_origin(urlsplit(entry if "://" in entry else f"https://{entry}")))
    return AllowList(frozenset(origins), tuple(networks), setting)


def check_listed(url: str, allowed: AllowList) -> SplitResult:
    """Return the parts of a URL; raise AddressNotAllowed if the list lacks its origin.

    Its host is not resolved.
    """
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
    except ValueError:
        raise AddressNotAllowed(
            f"{url[:80]} is not a valid address. Give one such as https://host/path."
        ) from None
    if parts.username is not None or parts.password is not None:
        raise AddressNotAllowed("The address names a user or password. Leave them out.")
    if origin not in allowed.origins:
        listed = (
            ", ".join(sorted(f"{scheme}://{host}:{port}" for scheme, host, port in allowed.origins))
            or "none"
        )
        scheme, host, port = origin
        raise AddressNotAllowed(
            f"{scheme}://{host}:{port} is not on the list of addresses that may be "
            f"called ({listed}); an operator adds it to {allowed.setting}."
        )
    return parts


def request(
    method: str,
    url: str,
    allowed: AllowList,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str],
    max_bytes: int,
) -> Answer:
    """Send a request, and return the status and the first ``max_bytes`` bytes of the answer.

    Raises AddressNotAllowed or Unreachable.
    """
    parts = check_listed(url, allowed)
    scheme, host, port = _origin(parts)
    address = _checked_ip_address(host, port, allowed)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.sock = socket.create_connection((address, port), timeout=TIMEOUT_S)
        if scheme == "https":
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        connection.request(method, path, body=body, headers=dict(headers))
        response = connection.getresponse()
        return Answer(response.status, response.read(max_bytes))
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{host} did not answer: {error or type(error).__name__}.") from None
    finally:
        connection.close()


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    """Return (scheme, host, port) of a URL; raise ValueError unless it is http(s) with a host."""
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(parts.geturl())
    return parts.scheme, parts.hostname.lower(), parts.port or PORTS[parts.scheme]


def _checked_ip_address(host: str, port: int, allowed: AllowList) -> str:
    """Return an IP address of ``host``; raise AddressNotAllowed if any of them is not allowed.

    Raises Unreachable if it has none.
    """
    # Check all addresses: a name server could mix a private address with a public one.
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(f"{host} is not known to the name servers: {error}.") from None
    # A socket address begins with the IP address.
    addresses = {str(socket_address[0]) for *_, socket_address in resolved}
    for text in sorted(addresses):
        without_zone, _, _ = text.partition("%")  # of an IPv6 address
        address = ipaddress.ip_address(without_zone)
        address = getattr(address, "ipv4_mapped", None) or address
        is_listed = any(address in network for network in allowed.networks)
        is_public = address.is_global and not address.is_multicast
        if not is_listed and not is_public:
            host_words = host if host == str(address) else f"{host} ({address})"
            raise AddressNotAllowed(
                f"{host_words} is not public. An operator can add its network to {allowed.setting}."
            )
    return min(addresses, key=lambda text: ":" in text)  # IPv4 if there is one
