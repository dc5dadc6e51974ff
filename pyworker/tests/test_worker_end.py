"""How a worker hears that it should end, in processes of their own: signals are theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest

DEADLINE_S = 60

BEGIN = """
import os, signal, sys, threading, time
from pelton.worker.end import End
end = End()
end.hear(signal.SIGTERM)
"""

BEFORE = """
os.kill(os.getpid(), signal.SIGTERM)
"""

ANOTHER_THREAD = """
def later():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=later).start()
"""

NO_SIGNAL = """
def later():
    time.sleep(0.2)
    for _ in range(100_000):  # more than a socket holds
        end.set()
threading.Thread(target=later).start()
"""

# Neither a signal that means something else, nor a child's own.
OTHERS = """
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
told = []
def later():
    time.sleep(0.5)
    told.append(True)
    end.set()
threading.Thread(target=later).start()
end.wait()
assert told
end.set()
"""


@pytest.mark.parametrize("what", [BEFORE, ANOTHER_THREAD, NO_SIGNAL, OTHERS])
def test_it_is_told_whichever_way_and_by_nothing_else(what: str) -> None:
    script = BEGIN + what + "end.wait()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")
