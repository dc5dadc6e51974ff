"""Prompts that come as embeddings, and what `transformers` says behind them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from support.checkpoints import oracle
from support.server import Server

COMPLETIONS = "/v1/completions"
TOKENS = 32


def sent(tensor: torch.Tensor) -> str:
    """As clients send it."""
    return base64.b64encode(safetensors.torch.save({"embeds": tensor.contiguous()})).decode()


@torch.inference_mode()
def own(folder: Path, ids: list[int]) -> torch.Tensor:
    """What the model itself puts in the place of tokens."""
    table = oracle(folder).get_input_embeddings()
    rows: torch.Tensor = table(torch.tensor(ids))
    return rows


def others(folder: Path, count: int, seed: int) -> torch.Tensor:
    """Embeddings that no token has, of the size of those that tokens have."""
    size = own(folder, list(range(100))).std()
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed)) * size


@torch.inference_mode()
def greedy(folder: Path, embeds: torch.Tensor) -> list[int]:
    """What transformers says behind them."""
    model = oracle(folder)
    table, known, output = model.get_input_embeddings(), embeds[None], list[int]()
    for _ in range(TOKENS):
        output.append(int(model(inputs_embeds=known).logits[0, -1].argmax()))
        known = torch.cat([known, table(torch.tensor([output[-1:]]))], dim=1)
    return output


def body(embeds: Any, **fields: Any) -> dict[str, Any]:
    """A request that tells its tokens."""
    usual = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {**usual, "prompt_embeds": embeds, **fields}


def told(server: Server, embeds: Any, **fields: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """The tokens of every answer, and the usage."""
    answer = server.post(COMPLETIONS, body(embeds, **fields))
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]], answer.json()["usage"]
