"""The socket that the service listens on, opened before anything is said of an address."""

from __future__ import annotations

import socket

from puzlm.errors import SettingsError

BACKLOG = 2048  # clients that may wait to be let in, as in uvicorn


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address; port 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise SettingsError(f"--port {port}: must be from 0 (any that is free) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"--host {host}: no address of this machine ({why})") from error
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise SettingsError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror}); "
            "choose another, or --port 0 for any that is free"
        ) from error
    return opened
