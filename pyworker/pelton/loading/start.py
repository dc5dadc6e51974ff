"""The beginning of every load: what was kept, if it can be used; else the checkpoint, which takes torch."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from pelton_kernels._native import memory_is_urgent

from pelton.kept.entry import keep, read
from pelton.kept.folder import KeptFolder
from pelton.kept.key import key_of
from pelton.loading.foreseen import foresee
from pelton.loading.ready import Progress, Ready
from pelton.loading.wish import Wish
from pelton.worker import about

if TYPE_CHECKING:
    from pelton.loading.load import Loaded

log = logging.getLogger("pelton.worker")

KEEPING = "keep"  # the thread's name
LOOK_S = 0.1  # how soon a load that is not wanted any more ends
WAIT_MAX_S = 120  # a disk that hangs keeps nobody from being served


def start(wish: Wish) -> Generator[Progress, None, Ready]:
    """Loads what `wish` says. Whoever stops asking for progress stops the loading."""
    memory_is_urgent(True)
    try:
        return (yield from _start(wish))
    finally:
        memory_is_urgent(False)


def _start(wish: Wish) -> Generator[Progress, None, Ready]:
    yield from _until_kept()
    yield Progress("looking for the model", 0, 0)
    folder = kept_folder(wish)
    key = ""
    if folder is not None:
        key = key_of(wish)
        kept = yield from read(folder, wish)
        if kept is not None:
            return kept
    yield Progress("importing PyTorch", 0, 0)
    memory = foresee(wish) if is_for_cpu(wish) else None
    _import_torch()
    waiting_bytes = memory.stop() if memory else 0
    from pelton.loading.load import load

    try:
        loaded = yield from load(wish, waiting_bytes)
    finally:
        del memory  # what the weights did not need of it goes back
    if folder is not None:
        _keep_meanwhile(folder, wish, key, loaded)
    if loaded.device.type == "cpu" and not is_for_cpu(wish):
        log.warning(
            "PyTorch cannot use the %s (why, `nvidia-smi` may say): the model runs on the processor%s",
            about.device()[1],
            ", and is not kept; --device cpu keeps it" if wish.kept_bytes else "",
        )
    return loaded


def _import_torch() -> None:
    """The first import makes hundreds of thousands of objects that stay. Looking for garbage among them, again and again, takes longer than
    some of its modules; nothing looks at them later, either."""
    if "torch" in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("pelton.loading.load")
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def kept_folder(wish: Wish) -> KeptFolder | None:
    """Where the model of this wish is kept; None: nowhere. What runs on a card is not."""
    return KeptFolder.open(wish.kept_folder, wish.kept_bytes) if is_for_cpu(wish) else None


def is_for_cpu(wish: Wish) -> bool:
    """Whether it will run on the processor, as far as can be known without torch."""
    return wish.device == "cpu" or (wish.device == "auto" and about.device()[0] == "cpu")


def _keep_meanwhile(folder: KeptFolder, wish: Wish, key: str, loaded: Loaded) -> None:
    """Beside the first requests: nothing but the next load waits for it. A process that ends meanwhile leaves a part, which the next deletes."""
    threading.Thread(target=keep, args=(folder, wish, key, loaded), name=KEEPING, daemon=True).start()


def _until_kept() -> Iterator[Progress]:
    """Whoever writes an earlier model down holds it, and two do not fit."""
    keeping = [thread for thread in threading.enumerate() if thread.name == KEEPING]
    until = time.monotonic() + WAIT_MAX_S
    for thread in keeping:
        while thread.is_alive() and time.monotonic() < until:
            yield Progress("waiting until the model before is kept", 0, 0)
            thread.join(LOOK_S)
    if any(thread.is_alive() for thread in keeping):
        log.warning("the model before has not been kept within %d s: it stays in memory until it is", WAIT_MAX_S)
    if keeping:
        gc.collect()  # its parts know each other
