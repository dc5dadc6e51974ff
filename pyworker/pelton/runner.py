"""One step, from the frame's arrays to the frame's results: deltas, forward pass, draw.

Never here: waiting, publishing, sockets, clocks. The step loop hands in frames; tests do the same without a process.
"""

from __future__ import annotations

import numpy as np
import torch
from pelton_kernels._native import MaskMemory

from pelton.batch import Batch, Layout
from pelton.frames import NOT_FINITE, Frame, Results
from pelton.host import HostBlocks
from pelton.loading.load import Loaded
from pelton.masks import row_masks
from pelton.models.decoder import Decoder
from pelton.models.pooled import PooledModel
from pelton.ragged import Indices
from pelton.replay import Replay
from pelton.sampler import Drawn, Sampler
from pelton.step import Embeds, Step
from pelton.transfer import Array, transfer_for


class Runner:
    """A loaded model with the state of one router's requests: made anew for each router, KV reset with it."""

    def __init__(
        self,
        loaded: Loaded,
        slots: int,
        top_logprobs: int,
        host: HostBlocks | None = None,
        masks: MaskMemory | None = None,
    ) -> None:
        kv, longest = loaded.kv, loaded.budget.max_model_len
        self._model = loaded.model
        self._kv = kv
        self._host = host
        self._masks = masks
        self._transfer = transfer_for(loaded.device)
        blocks_max = -(-longest // kv.shape.block_size)
        self._batch = Batch(len(kv.shape.kinds), slots, blocks_max, kv.shape.block_size)
        self._replay: Replay | None = None
        if loaded.device.type == "cuda" and isinstance(loaded.model, Decoder):
            self._replay = Replay(loaded.model, kv, slots, blocks_max, loaded.device)
        self._sampler = None
        if not isinstance(loaded.model, PooledModel):
            self._sampler = Sampler(slots, loaded.model.config.vocab, top_logprobs, loaded.device, self._transfer)

    @torch.inference_mode()
    def run(self, frame: Frame, step: int) -> None:
        """Applies the frame of a step in the contract's order: drops, admits, appends, saves, loads, copies, rows."""
        _running = self._kv.step(map(int, frame.appends[:, 3]))
        self._batch.apply(frame)
        if self._sampler is not None:
            self._sampler.admit(frame)
        if self._host is not None:
            self._move(frame, self._host)
        if len(frame.copies):
            source, target, tokens = self._transfer.up(list(frame.copies[:, :3].T.copy()))
            self._kv.copy(source, target, tokens)
        if len(frame.rows):
            self._run_rows(frame, step)
        if self._host is not None and (len(frame.saves) or len(frame.loads)):
            self._host.settle()  # once the results are out, the blocks are others' to read and to write

    def close(self) -> None:
        """Lets go of the router's memory. No frame is run any more."""
        if self._host is not None:
            self._host.close()

    def _move(self, frame: Frame, host: HostBlocks) -> None:
        if len(frame.saves):
            blocks, host_blocks = (torch.from_numpy(column) for column in frame.saves.T.copy())
            self._kv.save(host.bytes, blocks, host_blocks)
        if len(frame.loads):
            host_blocks, blocks = (torch.from_numpy(column) for column in frame.loads.T.copy())
            self._kv.load(host.bytes, host_blocks, blocks)

    def _run_rows(self, frame: Frame, step: int) -> None:
        at = self._batch.layout(frame)
        sent_embeds: list[Array] = [at.embeds_at, frame.embeds] if len(frame.embeds) else []
        (
            ids,
            positions,
            kv_slots,
            block_table,
            row_offsets,
            row_starts,
            pending_at,
            pending_slots,
            drawn_at,
            drawn_slots,
            drawn_positions,
            scored_at,
            scored_tokens,
            scored_slots,
            *given,
        ) = self._transfer.up(
            [
                at.ids,
                at.positions,
                at.kv_slots,
                at.block_table,
                at.row_offsets,
                at.row_starts,
                at.pending_at,
                at.pending_slots,
                at.drawn_at,
                at.drawn_slots,
                at.drawn_positions,
                at.scored.at,
                at.scored.tokens,
                at.scored.slots,
                *sent_embeds,
            ]
        )
        embeds = Embeds(*given) if given else None
        step_of_rows = Step(ids, positions, kv_slots, block_table, row_offsets, row_starts, self._kv, embeds)
        results = frame.results
        whole = (results.sampled, results.flags, results.chosen_logprob, results.top_ids, results.top_logprobs)
        for part in whole:
            part.fill(0)  # rows that do not sample
        if self._sampler is None or isinstance(self._model, PooledModel):
            assert isinstance(self._model, PooledModel), "what draws has a sampler"
            self._write_vectors(results, at, self._model.vectors(step_of_rows, drawn_at.int()))
            return
        ids.index_copy_(0, pending_at, self._sampler.latest.index_select(0, pending_slots))
        draws = len(at.drawn_rows)
        logits = (self._replay or self._model).logits(step_of_rows, torch.cat([drawn_at, scored_at]))
        if len(at.scored.at):
            self._write(whole, at.scored.results, self._sampler.score(logits[draws:], scored_tokens, scored_slots))
        if draws == 0:
            return
        masks = row_masks(self._masks, step, frame.rows[at.drawn_rows])
        drawn = self._sampler.draw(logits[:draws], drawn_slots, drawn_positions, masks)
        self._write(whole, at.drawn_results, drawn)

    def _write(self, results: tuple[Array, ...], places: Indices, drawn: Drawn) -> None:
        parts = (drawn.tokens, drawn.flags, drawn.chosen_logprob, drawn.top_ids, drawn.top_logprobs)
        for region, values in zip(results, self._transfer.down(parts), strict=True):
            region[places] = values

    def _write_vectors(self, results: Results, at: Layout, vectors: torch.Tensor) -> None:
        (values,) = self._transfer.down([vectors])
        results.pooled[at.drawn_results] = values
        results.flags[at.drawn_results[~np.isfinite(values).all(axis=1)]] = NOT_FINITE
