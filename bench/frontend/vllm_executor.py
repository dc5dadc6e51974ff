"""vLLM's executor with steps that compute nothing: its own scheduler, engine process and front end stay as they are.

    FRONTEND_BENCH_FOLDER=... PYTHONPATH=bench/frontend vllm serve ... --distributed-executor-backend vllm_executor.MadeUpExecutor

The folder has the tokens that steps draw, and the board (`made_up.py`).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from made_up import Engine
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import ModelRunnerOutput


class MadeUpExecutor(UniProcExecutor):
    """In the engine's process, as vLLM has it for a single device. The model is loaded (by the real worker) and never run."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._engine = Engine()
        self._prompts: dict[str, int] = {}
        """Of each request that runs, how long its prompt is."""

    def compile_or_warm_up_model(self) -> None:
        """There is nothing to warm up."""

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """One token for each request that has its whole prompt computed."""
        if scheduler_output.scheduled_new_reqs:
            self._engine.board.note_arrival()
        counts, tokens, prompts = scheduler_output.num_scheduled_tokens, self._engine.tokens, self._prompts
        for gone in scheduler_output.finished_req_ids:
            prompts.pop(gone, None)
        requests: list[str] = []
        drawn: list[list[int]] = []
        for new in scheduler_output.scheduled_new_reqs:
            assert new.prompt_token_ids is not None
            prompts[new.req_id] = len(new.prompt_token_ids)
            place = new.num_computed_tokens + counts[new.req_id]
            requests.append(new.req_id)
            drawn.append([tokens[place % len(tokens)]] if place >= prompts[new.req_id] else [])
        cached = scheduler_output.scheduled_cached_reqs
        for request, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            place = computed + counts[request]
            requests.append(request)
            drawn.append([tokens[place % len(tokens)]] if place >= prompts[request] else [])
        self._engine.wait()
        output = ModelRunnerOutput(
            req_ids=requests,
            req_id_to_index={request: at for at, request in enumerate(requests)},
            sampled_token_ids=drawn,
        )
        if not non_block:
            return output
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future
