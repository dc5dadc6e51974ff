"""Who holds this worker, what is loaded, and whether steps run: the state behind both doors (gRPC and memory socket).

The life of a claim:
  1. `handshake` makes the caller the holder, unless another one loads or is attached.
  2. `load` loads, or finds the same model loaded already: then the next router starts at once, with fresh KV.
  3. `attach` starts the step loop over the holder's frames. Its nonce must be the handshake's.
  4. `detach` ends the loop and lets go of the router's memory; the model stays, and the next handshake is welcome.

A holder that neither loads nor is attached may be displaced: nobody could tell whether it still lives. Its nonce is
void then, so it finds out at its next call.
"""

from __future__ import annotations

import dataclasses
import gc
import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pelton_kernels._native import HostMemory, MaskMemory, WorkerEnd

from pelton.worker import about
from pelton.worker.steps import StepLoop, steps_for

if TYPE_CHECKING:
    from pelton.loading.ready import Progress, Ready
    from pelton.loading.wish import Wish

log = logging.getLogger("pelton.worker")

NONCE_BYTES = 16


class BusyError(Exception):
    """Another router holds the worker."""


class ClaimError(Exception):
    """The caller does not hold the worker, or calls out of order."""


class Session:
    """One per process. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields; never held while loading or while a step runs
        self._nonce = b""
        self.epoch = 0  # of the latest handshake
        self._is_loading = False
        self._loaded: tuple[Wish, str, Ready] | None = None  # the wish, the files' fingerprint, the model
        self._loop: StepLoop | None = None

    def handshake(self, nonce: bytes, epoch: int) -> None:
        """Makes the caller the holder."""
        if len(nonce) != NONCE_BYTES:
            raise ClaimError(f"the nonce has {len(nonce)} bytes; it must have {NONCE_BYTES}")
        with self._lock:
            self._refuse_if_held()
            self._nonce, self.epoch = nonce, epoch

    def load(self, wish: Wish, is_wanted: Callable[[], bool]) -> Iterator[Progress | Ready]:
        """Yields progress, and last the model. Stops early once it is no longer wanted."""
        from pelton.loading.fingerprint import fingerprint
        from pelton.loading.start import start

        with self._lock:
            if not self._nonce:
                raise ClaimError("the handshake comes first")
            self._refuse_if_held()
            self._is_loading = True
        try:
            files = fingerprint(wish.folder)
            loaded = self._loaded
            if loaded is not None and _will_do(*loaded, wish, files):
                log.info("the model is loaded already")
            else:
                loaded = None  # else it would stay while the next one is read
                self._forget_model()
                loading = start(wish)
                while True:
                    if not is_wanted():
                        log.warning("loading was given up: the router has gone")
                        return
                    try:
                        yield next(loading)
                    except StopIteration as end:
                        loaded = self._loaded = (wish, files, end.value)
                        break
        finally:
            with self._lock:
                self._is_loading = False
        # No longer held: the router may attach the moment it has read this, before the call has ended, and another may load its own.
        yield loaded[2]

    def attach(
        self,
        nonce: bytes,
        end: WorkerEnd,
        published: Callable[[int], None] | None,
        failed: Callable[[], None],
        host: HostMemory | None = None,
        masks: MaskMemory | None = None,
    ) -> StepLoop:
        """Starts to run the frames of `end`. See `StepLoop` for the two calls."""
        with self._lock:
            if not self._nonce or not hmac.compare_digest(nonce, self._nonce):
                raise ClaimError("the nonce is not that of the latest handshake: another router has taken over")
            if end.epoch != self.epoch:
                raise ClaimError(f"the frames are of epoch {end.epoch}; the handshake was of epoch {self.epoch}")
            self._refuse_if_held()
            if self._loaded is None:
                raise ClaimError("no model is loaded")
            _, _, loaded = self._loaded
            slots, tokens, top_logprobs = (end.layout[name] for name in ("rows", "tokens", "top_ids"))
            if slots[2] > loaded.slots or tokens[2] > loaded.token_budget:
                raise ClaimError(
                    f"frames of {slots[2]} slots and {tokens[2]} tokens; "
                    f"the model was loaded for {loaded.slots} and {loaded.token_budget}"
                )
            width = 0 if loaded.pooling is None else loaded.pooling.width
            if width and end.layout["pooled"][1] != width:
                raise ClaimError(f"frames for vectors of {end.layout['pooled'][1]} numbers; the model gives {width}")
            _, embed_width, embeds = end.layout["embeds"]
            if embeds and embed_width != loaded.embed_width:
                raise ClaimError(
                    f"frames for embeddings of {embed_width} numbers; the model's have {loaded.embed_width}"
                )
            if host is not None and host.block_bytes != loaded.shape.block_bytes:
                raise ClaimError(
                    f"host memory for blocks of {host.block_bytes} bytes; "
                    f"the model's blocks have {loaded.shape.block_bytes}"
                )
            vocab = loaded.vocab
            if masks is not None and (masks.slots != slots[2] or masks.tokens != vocab or masks.epoch != self.epoch):
                raise ClaimError(
                    f"masks of {masks.slots} slots and {masks.tokens} tokens in epoch {masks.epoch}; "
                    f"frames and model have {slots[2]} and {vocab} in epoch {self.epoch}"
                )
            end.set_bounds(
                blocks=loaded.budget.blocks,
                kinds=len(loaded.shape.kinds),
                host_blocks=0 if host is None else host.blocks,
                block_size=loaded.shape.block_size,
                vocab=vocab,
                positions=loaded.budget.max_model_len,
            )
            self._loop = StepLoop(end, steps_for(loaded, slots[2], top_logprobs[1], host, masks), published, failed)
            return self._loop

    def local_masks(self, slots: int) -> MaskMemory:
        """For a router that shares no memory: its masks come inline."""
        with self._lock:
            if self._loaded is None:
                raise ClaimError("no model is loaded")
            return MaskMemory.local(slots, self._loaded[2].vocab, self.epoch)

    def detach(self, loop: StepLoop) -> None:
        """Ends a loop; the worker is free for the next router."""
        loop.stop()
        with self._lock:
            if self._loop is loop:
                self._loop = None
                self._nonce = b""
        log.info("the router has gone after %d steps", loop.steps)

    def drain(self) -> int:
        """Finishes the frames that were submitted; returns how many steps there were."""
        with self._lock:
            loop = self._loop
        if loop is None:
            return 0
        loop.drain()
        return loop.steps

    def health(self) -> tuple[int, int]:
        """Steps since attach, and microseconds that the running one has run."""
        with self._lock:
            loop = self._loop
        return (0, 0) if loop is None else (loop.steps, loop.running_step_micros())

    def _refuse_if_held(self) -> None:
        if self._loop is not None:
            raise BusyError("this worker serves another router; it takes the next one when that one has gone")
        if self._is_loading:
            raise BusyError("this worker loads a model for another router; try again when it is done")

    def _forget_model(self) -> None:
        """Before another model is read: two do not fit."""
        if self._loaded is None:
            return
        self._loaded = None
        gc.collect()
        if about.device()[0] != "cpu":
            import torch

            torch.cuda.empty_cache()


def _will_do(loaded_for: Wish, loaded_files: str, loaded: Ready, wish: Wish, files: str) -> bool:
    """Whether the loaded model is the one that is wished for. The memory limit is left out: routers read it from what is free at their
    start, and what is loaded was within the limit of its day. So is where models are kept. A server that knows its context wants that one."""
    ours, theirs = (
        dataclasses.replace(wish, memory_limit_bytes=0, kept_folder=None, kept_bytes=0, first_context=0)
        for wish in (loaded_for, wish)
    )
    return ours == theirs and loaded_files == files and wish.first_context in (0, loaded.budget.max_model_len)
