"""The memory socket: a router on this host hands over frame memory, and stays connected for as long as it is attached.

gRPC carries no descriptors, so this is a socket of its own:

    router -> worker   nonce (16 bytes), with three descriptors: memory, bell, masks; and a fourth if there is host memory
    worker -> router   1: mapped, steps run   |   0, length (u32, little-endian), why not
    ...                the connection stays open and silent; its end detaches the router, however it went

The worker closes the connection when it has let go of the memory, and not before: to a router that has given this worker
up, the end of the connection says that nothing writes to host memory any more.

Only processes of the same user are heard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from pathlib import Path

from pelton_kernels._native import HostMemory, MaskMemory, WorkerEnd

from pelton.worker.session import NONCE_BYTES, BusyError, ClaimError, Session
from pelton.worker.steps import StepLoop

log = logging.getLogger("pelton.worker")

UCRED = struct.Struct("iII")  # pid, uid, gid
MAPPED, REFUSED = b"\x01", b"\x00"


class MemorySocket:
    """Listens on a path. Each connection has a thread of its own, since a router stays as long as it likes."""

    def __init__(self, path: Path, session: Session) -> None:
        self._session = session
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(8)
        threading.Thread(target=self._accept, name="memory socket", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:  # no descriptors left, say: there will be some again
                log.warning("a router cannot be heard: %s", error)
                time.sleep(1)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="memory", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            loop = None
            try:
                loop = self._take(connection)
                if loop is None:
                    return
                connection.sendall(MAPPED)
                connection.recv(1)  # returns when the router closes, or dies
            except (BusyError, ClaimError, ValueError) as error:  # ValueError: the memory is not what it claims
                log.warning("memory was refused: %s", error)
                why = str(error).encode()
                with contextlib.suppress(OSError):  # whoever was refused may be gone
                    connection.sendall(REFUSED + struct.pack("<I", len(why)) + why)
            except OSError as error:
                log.warning("the memory connection broke: %s", error)
            finally:
                if loop is not None:
                    self._session.detach(loop)

    def _take(self, connection: socket.socket) -> StepLoop | None:
        """Steps run from now on. None: the router has gone before it handed anything over."""
        _, uid, _ = UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
        if uid != os.geteuid():
            raise ClaimError(f"user {uid} may not hand over memory to user {os.geteuid()}")
        # No deadline: a router connects before it loads, so that it can unlink the socket files, and sends afterwards.
        nonce, fds, flags, _ = socket.recv_fds(connection, NONCE_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
        if not nonce:
            return None
        try:
            if len(nonce) != NONCE_BYTES or len(fds) not in {3, 4} or flags & socket.MSG_CTRUNC:
                raise ClaimError(
                    f"{len(nonce)} bytes and {len(fds)} descriptors came; expected {NONCE_BYTES}, and 3 or 4"
                )
            end = WorkerEnd.from_fds(*fds[:2])
            masks = MaskMemory.from_fd(fds[2])
            host = HostMemory.from_fd(fds[3]) if len(fds) == 4 else None
        finally:
            for fd in fds:
                os.close(fd)
        # A loop that cannot go on hangs up, so that the router hears of it at once. It only wakes `_serve`, which closes
        # the connection when the memory is let go.
        return self._session.attach(
            nonce, end, published=None, failed=lambda: connection.shutdown(socket.SHUT_RD), host=host, masks=masks
        )
