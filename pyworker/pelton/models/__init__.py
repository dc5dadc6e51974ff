"""Model families, by the names that checkpoints give their architectures."""

from __future__ import annotations

from typing import Any

from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models import gemma, gpt, llama
from pelton.models.config import DecoderConfig
from pelton.models.family import FUSED, GPT2, GPT_NEOX, NORMS_AFTER, PLAIN_MLP, Family

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", llama.llama, {}),
    "MistralForCausalLM": Family("mistral", llama.mistral, {}),
    "Qwen2ForCausalLM": Family("qwen2", llama.qwen2, {}),
    "Qwen3ForCausalLM": Family("qwen3", llama.qwen3, {}),
    "Gemma2ForCausalLM": Family("gemma2", gemma.gemma2, NORMS_AFTER),
    "Gemma3ForCausalLM": Family("gemma3", gemma.gemma3, NORMS_AFTER),
    "SmolLM3ForCausalLM": Family("smollm3", llama.smollm3, {}),
    "GraniteForCausalLM": Family("granite", llama.granite, {}),
    "Olmo2ForCausalLM": Family("olmo2", llama.olmo2, NORMS_AFTER),
    "Phi3ForCausalLM": Family("phi3", llama.phi3, FUSED),
    "GPT2LMHeadModel": Family("gpt2", gpt.gpt2, GPT2, gpt.GPT2_FIELDS),
    "GPTNeoXForCausalLM": Family("gpt_neox", gpt.gpt_neox, GPT_NEOX, gpt.NEOX_FIELDS),
    "Starcoder2ForCausalLM": Family("starcoder2", gpt.starcoder2, PLAIN_MLP, gpt.STARCODER2_FIELDS),
    "CohereForCausalLM": Family("cohere", gpt.cohere, {}, gpt.COHERE_FIELDS),
    "Cohere2ForCausalLM": Family("cohere2", gpt.cohere2, {}, gpt.COHERE_FIELDS),
}


def resolve(config: dict[str, Any]) -> tuple[Family, DecoderConfig]:
    """The family of a config.json, and the config as that family reads it."""
    if config.get("auto_map"):  # B:A7: code from a repository is never run, whatever else the config says
        raise LoadError("the model brings Python code of its own (`auto_map` in config.json), and Pelton runs none")
    named = config.get("architectures") or []
    if not isinstance(named, list):
        named = [named]
    family = next((ARCHITECTURES[name] for name in named if name in ARCHITECTURES), None)
    if family is None:
        got = ", ".join(map(str, named)) or "none"
        raise LoadError(f"`architectures` in config.json: {got}; supported: {', '.join(ARCHITECTURES)}")
    return family, family.read_config(Fields(config, called=family.fields))
