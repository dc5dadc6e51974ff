"""How a worker learns that it should end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket


class End:
    """Told by signals, or from any thread; waited for by the main one.

    No signal is missed. Python runs handlers in its main thread alone, and who waits there for a lock sleeps on if the system hands the signal to
    another thread, or just before the wait begins; a byte in a socket is there in any case."""

    SET = 0  # the number of no signal

    def __init__(self) -> None:
        self._told, self._hears = socket.socketpair()
        self._told.setblocking(False)  # whoever finds it full has been heard
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # its signals are its own
        self._meant = {self.SET}

    def hear(self, number: signal.Signals) -> None:
        """That signal tells it. Of the main thread alone."""
        self._meant.add(number)
        signal.signal(number, lambda *_: None)

    def set(self) -> None:
        """Tells it."""
        with contextlib.suppress(BlockingIOError):
            self._told.send(bytes([self.SET]))

    def wait(self) -> None:
        """Returns once it is told; for one caller."""
        while self._hears.recv(1)[0] not in self._meant:
            pass
