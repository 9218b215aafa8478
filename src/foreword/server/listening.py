"""Where a server listens: decided and taken before anything slow is imported or loaded."""

import errno
import socket

from foreword.core.errors import ForewordError


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything slow is done.

    Raises:
        ForewordError: it can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OverflowError:
        raise ForewordError(f"--port: expected 0 to 65535, got {port}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ForewordError(f"port {port} of {host} is taken; choose another with --port") from None
        raise ForewordError(f"can't listen on {host}:{port}: {error.strerror or error}") from None


def check_exposure(host: str, *, has_keys: bool) -> None:
    """Refuse to serve other machines without keys.

    Raises:
        ForewordError: the host is not the loopback's, and there are no keys.
    """
    if not has_keys and host not in {"localhost", "127.0.0.1", "::1"}:
        raise ForewordError(f"--host {host}: other machines may only be served with keys; give --api-keys FILE")
