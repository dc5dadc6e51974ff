"""A router in a hundred lines: plans chunks under a budget, one step ahead, and commits what was drawn.

It stands where the real one stands: its plans are bytes that `WorkerEnd` checks, its results are what the frame holds.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pelton.frames import Counts, FrameViews, Results
from pelton.host import HostBlocks
from pelton.kept.entry import Kept
from pelton.loading.load import Loaded
from pelton.runner import Runner
from pelton.worker.steps import steps_for
from pelton_kernels._native import HostMemory, Steps, WorkerEnd
from plans import CAPACITIES, Admit, Plan, Row

EMBEDS = 9  # of a step


@dataclass
class Request:
    """One request's life."""

    rules: Admit
    prompt: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)
    blocks: dict[tuple[int, int], int] = field(default_factory=dict)  # by kind and place
    computed: int = 0
    planned: int = 0  # tokens drawn or to be drawn by steps in flight
    drafts: list[int] = field(default_factory=list)  # in flight
    accepted: int = 0
    is_scored: bool = False
    scores: list[tuple[int, float, list[tuple[int, float]]]] = field(default_factory=list)  # rank, ...
    embeds: list[list[float]] = field(default_factory=list)  # in the place of the prompt's first tokens

    @property
    def known(self) -> list[int]:
        """What the router knows."""
        return self.prompt + self.output

    @property
    def is_planned_out(self) -> bool:
        """Whether no further step is needed."""
        return self.planned == self.max_tokens


class OneByOne:
    """Computes plans as they are handed in: by the model's program if it has one, else eagerly."""

    def __init__(self, loaded: Loaded | Kept, host: HostMemory | None = None, **capacities: int) -> None:
        self.end = WorkerEnd.inline(CAPACITIES | capacities, 1)
        self.end.set_bounds(
            host_blocks=0 if host is None else host.blocks,
            blocks=loaded.budget.blocks,
            kinds=len(loaded.shape.kinds),
            block_size=loaded.shape.block_size,
            vocab=loaded.vocab,
            positions=loaded.budget.max_model_len,
        )
        self._views = FrameViews(self.end)
        bounds = CAPACITIES["slots"], CAPACITIES["top_logprobs"]
        self._native = steps_for(loaded, *bounds, host) if loaded.program else None
        self._eager = None
        if isinstance(loaded, Loaded) and not loaded.program:
            self._eager = Runner(loaded, *bounds, None if host is None else HostBlocks(host, loaded.device))

    def compute(self) -> Results:
        """The next plan that was accepted, computed; its results count until the frame is written again."""
        frame = self.end.wait(0.0)
        assert frame is not None
        counts = Counts(*self.end.header(frame))
        cut = self._views.cut(frame, counts)
        if self._eager:
            self._eager.run(cut, counts.step)
        else:
            assert isinstance(self._native, Steps)
            self._native.run(self.end, frame)
        self.end.publish(frame, 0, 1)
        return cut.results


class TinyRouter:
    """Drives a worker's steps. `chunk` bounds a row's tokens; None: all that the budget leaves, at random."""

    def __init__(
        self,
        loaded: Loaded | Kept,
        chunk: int | None = None,
        seed: int = 0,
        guess: Callable[[Request], list[int]] | None = None,
    ) -> None:
        self._worker = OneByOne(loaded, embeds=EMBEDS if loaded.embed_width else 0, embed_width=loaded.embed_width)
        self._guess = guess  # what a request will draw next, rightly or not
        shape = loaded.shape
        self._block_size = shape.block_size
        self._kinds = shape.kinds
        self.held_max = 0  # blocks that requests held at once
        self._free = list(range(loaded.budget.blocks))
        self._chunk = chunk
        self._random = random.Random(seed)
        self._random.shuffle(self._free)  # blocks of a request lie anywhere
        self._step = 0
        self._drops: list[int] = []

    def run(self, *requests: Request) -> list[list[int]]:
        """All to their end, together; returns what they drew. Slots are given in order and must suffice."""
        for slot, request in enumerate(requests):
            request.rules.slot = slot
            request.rules.prompt_len = len(request.prompt) - len(request.embeds)
            request.rules.history = request.known[len(request.embeds) :]
            request.planned = len(request.output)
        self._by_slot = dict(enumerate(requests))
        waiting, running = deque(requests), list[Request]()
        in_flight: deque[tuple[Plan, list[Request]]] = deque()
        while waiting or in_flight or any(not request.is_planned_out for request in running):
            plan, sampled = self._plan(waiting, running)
            if plan.rows:
                self._worker.end.accept_plan(plan.to_bytes())
                in_flight.append((plan, sampled))
            if len(in_flight) == 2 or not plan.rows:  # one step ahead
                self._commit(*in_flight.popleft())
        self._drops = [request.rules.slot for request in requests]
        for request in requests:
            self._free += request.blocks.values()
            request.blocks = {}
        return [request.output for request in requests]

    def _plan(self, waiting: deque[Request], running: list[Request]) -> tuple[Plan, list[Request]]:
        self._step += 1
        plan, sampled = Plan(self._step, drops=self._drops), []
        self._drops = []
        if waiting:  # one at a time, so that prompts meet requests that decode already
            running.append(waiting.popleft())
            plan.admits.append(running[-1].rules)
        left, scores_left, embeds_left = CAPACITIES["tokens"], CAPACITIES["scores"], EMBEDS
        for request in self._random.sample(running, len(running)):
            total = len(request.prompt) + request.planned  # known, or known to the device
            count = min(total - request.computed, left, self._chunk or left)
            if count == 0 or request.is_planned_out or request.drafts:
                continue
            has_drafts = self._guess is not None and not request.rules.has_penalties
            if has_drafts and request.planned > len(request.output):
                continue  # they stand behind what is known
            if self._chunk is None:
                count = self._random.randint(1, count)
            if min(request.computed + count, len(request.embeds)) - request.computed > embeds_left:
                count = embeds_left
            last = len(request.prompt) - 1 if request.is_scored else 0  # it is followed by no prompt token
            if min(request.computed + count, last) - request.computed > scores_left:
                count = scores_left
            if count == 0:
                continue
            self._give_blocks(plan, request, request.computed + count)
            known = request.known[request.computed : request.computed + count]
            samples = request.computed + count == total
            if samples and has_drafts and self._guess:
                drawn = len(running) + sum(row.drafts for row in plan.rows)  # at most as many as slots
                room = min(left - count - len(running), request.max_tokens - request.planned - 1)
                request.drafts = self._guess(request)[: max(0, min(room, CAPACITIES["slots"] - drawn))]
                self._give_blocks(plan, request, request.computed + count + len(request.drafts))
            drafts = len(request.drafts)
            row = Row(request.rules.slot, request.computed, count + drafts, known + request.drafts, samples, drafts)
            row.scores = max(0, min(request.computed + count, last) - request.computed)
            row.next = 0 if samples or not row.scores else request.prompt[request.computed + count]
            row.embeds = request.embeds[request.computed : request.computed + count]
            scores_left -= row.scores
            embeds_left -= len(row.embeds)
            plan.rows.append(row)
            request.computed += row.count
            left -= row.count
            if samples:
                request.planned += 1 + drafts
                sampled.append(request)
        plan.has_top = any(request.rules.logprobs or request.rules.score_top for request in running)
        if not plan.rows:
            self._step -= 1
        return plan, sampled

    def _give_blocks(self, plan: Plan, request: Request, tokens: int) -> None:
        for kind, sort in enumerate(self._kinds):
            # What the row's first token sees no more is anybody's, even of this step: earlier steps have run by then.
            behind = 0 if sort.window is None else max(0, request.computed + 1 - sort.window) // self._block_size
            gone = [place for place in request.blocks if place[0] == kind and place[1] < behind]
            self._free += [request.blocks.pop(place) for place in gone]
            for at in range(-(-request.computed // self._block_size), -(-tokens // self._block_size)):
                if (kind, at) in request.blocks:  # of drafts that did not count
                    continue
                request.blocks[kind, at] = self._free.pop()
                plan.appends.append((request.rules.slot, kind, at, request.blocks[kind, at]))
        self.held_max = max(self.held_max, len(request.blocks))

    def _commit(self, plan: Plan, sampled: list[Request]) -> None:
        results, at = self._worker.compute(), iter(sampled)
        first = 0  # of a row's results
        for row in plan.rows:
            for number in range(first, first + row.scores):
                top = zip(results.top_ids[number].tolist(), results.top_logprobs[number].tolist(), strict=True)
                chosen = float(results.chosen_logprob[number])
                self._by_slot[row.slot].scores.append((int(results.sampled[number]), chosen, list(top)))
                assert results.flags[number] == 0
            first += row.scores
            if row.samples:
                request = next(at)
                drafts, request.drafts = request.drafts, []
                for number, draft in enumerate([*drafts, None], start=first):
                    request.output.append(int(results.sampled[number]))
                    assert results.flags[number] == 0
                    top = zip(results.top_ids[number].tolist(), results.top_logprobs[number].tolist(), strict=True)
                    request.logprobs.append((float(results.chosen_logprob[number]), list(top) if plan.has_top else []))
                    if request.output[-1] != draft:
                        break
                    request.accepted += 1
                if drafts:
                    request.planned = len(request.output)
                    request.computed = len(request.known) - 1
            first += 1 + row.drafts


def eagerly(loaded: Loaded) -> Loaded:
    """The same model, run through Python: the oracle of its program."""
    return dataclasses.replace(loaded, built=None)


def load_whole(folder: object, **wish: object) -> Loaded:
    """Loads without looking at progress."""
    from pathlib import Path

    from pelton.loading.load import load
    from pelton.loading.wish import Wish

    fields = {
        "kv_bytes": 8 << 20,
        "block_size": 8,
        "threads": 1,
        "slots": 8,
        "token_budget": 48,
        "device": "cpu",
    } | wish
    loading = load(Wish(Path(str(folder)), **fields))  # type: ignore[arg-type]
    while True:
        try:
            next(loading)
        except StopIteration as end:
            loaded: Loaded = end.value
            return loaded
