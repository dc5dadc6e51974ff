"""Model families, by the names that checkpoints give their architectures."""

from __future__ import annotations

from typing import Any

from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models.config import DecoderConfig
from pelton.models.llama import Llama
from pelton.models.qwen3 import Qwen3

ARCHITECTURES: dict[str, type[Llama]] = {"LlamaForCausalLM": Llama, "Qwen3ForCausalLM": Qwen3}


def resolve(config: dict[str, Any]) -> tuple[type[Llama], DecoderConfig]:
    """The family of a config.json, and the config as that family reads it."""
    if config.get("auto_map"):  # B:A7: code from a repository is never run, whatever else the config says
        raise LoadError("the model brings Python code of its own (`auto_map` in config.json), and Pelton runs none")
    if config.get("quantization_config"):
        method = Fields(config).object("quantization_config").get("quant_method")
        raise LoadError(f"the checkpoint is quantized ({method}); supported: bfloat16, float16 and float32 weights")
    named = config.get("architectures") or []
    if not isinstance(named, list):
        named = [named]
    family = next((ARCHITECTURES[name] for name in named if name in ARCHITECTURES), None)
    if family is None:
        got = ", ".join(map(str, named)) or "none"
        raise LoadError(f"`architectures` in config.json: {got}; supported: {', '.join(ARCHITECTURES)}")
    return family, family.read_config(Fields(config))
