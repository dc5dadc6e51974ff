"""`pelton chat` as a person meets it: on a terminal, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.server import PELTON, Server

WITHIN_S = 60.0
LEAVE = b"\x04"  # Ctrl-D


class Terminal:
    """One end of a terminal of 40 lines and 80 columns; `pelton chat` has the other."""

    def __init__(self, *flags: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(PELTON, [str(PELTON), "chat", *flags])
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        self._drawn = b""

    def until(self, words: bytes) -> bytes:
        """What is drawn until `words` stand there; what comes behind them is kept."""
        while words not in self._drawn:
            assert select.select([self._end], [], [], WITHIN_S)[0], self._drawn
            self._drawn += os.read(self._end, 1 << 16)
        before, self._drawn = self._drawn.split(words, 1)
        return before + words

    def type(self, keys: bytes) -> None:
        """Types, or pastes. What is drawn meanwhile is read: a terminal that is not read takes no keys either."""
        os.set_blocking(self._end, False)
        while keys:
            readable, writable, _ = select.select([self._end], [self._end], [], WITHIN_S)
            assert readable or writable, self._drawn
            if readable:
                self._drawn += os.read(self._end, 1 << 16)
            if writable:
                keys = keys[os.write(self._end, keys[:256]) :]
        os.set_blocking(self._end, True)

    def left(self) -> int:
        """Waits for the end; the exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._end)
        return code


@contextmanager
def chatting(server: Server) -> Iterator[Terminal]:
    terminal = Terminal("--url", server.url)
    terminal.until(b"> ")
    yield terminal


def test_a_long_paste_is_drawn_once_and_its_refusal_is_no_failure_of_the_chat(server: Server) -> None:
    text = b"some words, and then\n" * 1200  # 25,000 characters in lines: one prompt, since terminals bracket a paste
    with chatting(server) as terminal:
        terminal.type(b"\x1b[200~" + text + b"\x1b[201~\r")
        drawn = terminal.until(b"shorten the message")
        assert len(drawn) < 3 * len(text), "drawn again and again"
        terminal.until(b"> ")  # only there Ctrl-D is a key of the prompt's
        terminal.type(LEAVE)
        assert terminal.left() == 0


def test_in_a_pipe_a_refused_prompt_is_an_exit_code(server: Server) -> None:
    command = [PELTON, "chat", "--url", server.url, "--max-tokens", "4"]
    prompts = "hello\n" + "long " * 2000 + "\n"
    ended = subprocess.run(command, input=prompts, capture_output=True, text=True, timeout=WITHIN_S)
    assert ended.returncode == 1
    assert "shorten the message" in ended.stderr


def test_a_conversation_outlives_the_context(server: Server) -> None:
    command = [PELTON, "chat", "--url", server.url, "--max-tokens", "4"]
    prompts = ("what was it that I said? " * 4 + "\n") * 12
    ended = subprocess.run(command, input=prompts, capture_output=True, text=True, timeout=WITHIN_S)
    assert ended.returncode == 0, ended.stderr
    assert "(the context is full: the oldest prompt" in ended.stderr


def test_what_nobody_reads_is_no_panic() -> None:
    for words in (
        ["doctor"],
        ["doctor", "--json"],
        ["config", "docs"],
        ["config", "explain"],
        ["serve", "--help"],
        ["help"],
    ):
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run([PELTON, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=WITHIN_S)
        assert ended.returncode == 1, words
        assert ended.stderr.startswith("pelton: standard output cannot be written"), ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
        read, write = os.pipe()
        os.close(read)
        ended = subprocess.run([PELTON, *words], stdout=write, stderr=subprocess.PIPE, text=True, timeout=WITHIN_S)
        os.close(write)
        assert ended.stderr == "", words
