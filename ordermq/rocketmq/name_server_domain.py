"""Name servers by a web address: a page whose first line lists them."""

from __future__ import annotations

import urllib.error
import urllib.request

from ordermq.errors import ConfigError, ConnectFailed

_TIMEOUT_S = 5.0
_MOST_BYTES = 65_536


def name_servers_at(domain: str) -> str:
    """Ask `domain` for the addresses, `host:port;host:port`; once, at the start of a client.

    Raises: ConfigError: no web address, or its page is empty. ConnectFailed: no answer.
    """
    url = domain if "://" in domain else f"http://{domain}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"name server domain {domain!r}: expected http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as page:
            text = page.read(_MOST_BYTES).decode("ascii", "replace")
    except (OSError, urllib.error.URLError) as error:
        raise ConnectFailed(f"the name server domain does not answer: {error}", address=url) from (
            error
        )
    addresses: str = text.strip().partition("\n")[0].strip()
    if not addresses:
        raise ConfigError(f"the name server domain {url} lists no addresses")
    return addresses
