"""Where a worker listens, as its command line says it."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

PATH_BYTES_MAX = 107  # of a Unix socket's name
MEMORY_SUFFIX = ".memory"


class AddressError(Exception):
    """The address cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """On this host: frames in shared memory."""

    path: Path

    @property
    def memory(self) -> Path:
        """The second socket, on which memory is handed over."""
        return self.path.with_name(self.path.name + MEMORY_SUFFIX)

    @property
    def grpc(self) -> str:
        """As gRPC names it."""
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """On any host: frames inline."""

    host: str
    port: int

    @property
    def grpc(self) -> str:
        """As gRPC names it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> UnixAddress | TcpAddress:
    """`unix:///path` or `tcp://host:port`."""
    scheme, _, rest = text.partition("://")
    if scheme == "unix" and rest.startswith("/"):
        address = UnixAddress(Path(rest))
        if len(os.fsencode(address.memory)) > PATH_BYTES_MAX:
            raise AddressError(
                f"`{rest}` is too long: a socket's path and `{MEMORY_SUFFIX}` have {PATH_BYTES_MAX} bytes"
            )
        return address
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if host and port.isdecimal() and int(port) < 1 << 16:
            return TcpAddress(host.strip("[]"), int(port))
    raise AddressError(f"`{text}` is no address; give unix:///path/to/worker.sock or tcp://HOST:PORT")


def clear(path: Path) -> None:
    """Removes a socket that a dead worker left behind. One that answers stays, and is an error."""
    if not path.is_socket():
        if path.exists():
            raise AddressError(f"{path} exists and is no socket")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        code = probe.connect_ex(str(path))
    if code == 0:
        raise AddressError(f"another worker listens on {path}")
    if code not in {errno.ECONNREFUSED, errno.ENOENT}:
        raise AddressError(f"cannot use {path}: {os.strerror(code)}")
    path.unlink(missing_ok=True)
