"""Model families, by the names that checkpoints give their architectures."""

from __future__ import annotations

from typing import Any

from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models import gemma, gpt, llama
from pelton.models.config import DecoderConfig
from pelton.models.family import (
    BESIDE_IMAGES,
    BESIDE_IMAGES_BEGINS,
    BESIDE_IMAGES_IGNORED,
    BLOOM,
    FUSED,
    GPT2,
    GPT_NEOX,
    NORMS_AFTER,
    PLAIN_MLP,
    Family,
)

_GEMMA3_BESIDE_IMAGES = Family(
    "gemma3",
    gemma.gemma3_beside_images,
    BESIDE_IMAGES,
    gemma.TEXT_FIELDS,
    begins=BESIDE_IMAGES_BEGINS,
    ignored=BESIDE_IMAGES_IGNORED,
)
ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", llama.llama, {}),
    "MistralForCausalLM": Family("mistral", llama.mistral, {}),
    "MinistralForCausalLM": Family("mistral", llama.mistral, {}),
    "Qwen2ForCausalLM": Family("qwen2", llama.qwen2, {}),
    "Qwen3ForCausalLM": Family("qwen3", llama.qwen3, {}),
    "Gemma2ForCausalLM": Family("gemma2", gemma.gemma2, NORMS_AFTER),
    "Gemma3ForCausalLM": Family("gemma3", gemma.gemma3, NORMS_AFTER),
    "Gemma3ForConditionalGeneration": _GEMMA3_BESIDE_IMAGES,
    "SmolLM3ForCausalLM": Family("smollm3", llama.smollm3, {}),
    "GraniteForCausalLM": Family("granite", llama.granite, {}),
    "Olmo2ForCausalLM": Family("olmo2", llama.olmo2, NORMS_AFTER),
    "Phi3ForCausalLM": Family("phi3", llama.phi3, FUSED),
    "GPT2LMHeadModel": Family("gpt2", gpt.gpt2, GPT2, gpt.GPT2_FIELDS),
    "GPTNeoXForCausalLM": Family("gpt_neox", gpt.gpt_neox, GPT_NEOX, gpt.NEOX_FIELDS),
    "BloomForCausalLM": Family("bloom", gpt.bloom, BLOOM, gpt.BLOOM_FIELDS),
    "Starcoder2ForCausalLM": Family("starcoder2", gpt.starcoder2, PLAIN_MLP, gpt.STARCODER2_FIELDS),
    "CohereForCausalLM": Family("cohere", gpt.cohere, {}, gpt.COHERE_FIELDS),
    "Cohere2ForCausalLM": Family("cohere2", gpt.cohere2, {}, gpt.COHERE_FIELDS),
}


def resolve(config: dict[str, Any]) -> tuple[Family, DecoderConfig]:
    """The family of a config.json, and the config as that family reads it."""
    family = family_of(config)
    if family is None:
        raise LoadError(f"`architectures` in config.json: {named(config)}; supported: {', '.join(ARCHITECTURES)}")
    fields = Fields(config, called=family.fields)
    if not fields.flag("is_causal", default=True):
        raise LoadError("`is_causal` in config.json is false; supported for vectors (--task embed), for tokens true")
    return family, family.read_config(fields)


def family_of(config: dict[str, Any]) -> Family | None:
    """The family of a config.json, if it is one of ours."""
    return next((ARCHITECTURES[name] for name in _names(config) if name in ARCHITECTURES), None)


def named(config: dict[str, Any]) -> str:
    """What a config.json calls its model, for a message."""
    return ", ".join(_names(config)) or "none"


def _names(config: dict[str, Any]) -> list[str]:
    names = config.get("architectures") or []
    return [name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str)]
