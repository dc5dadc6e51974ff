"""A family of checkpoints: how its config.json is read, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pelton.loading.config import Fields
from pelton.models.config import DecoderConfig

# Which of the checkpoint's tensors a layer holds; `*` is the block's number. Several stand one above the other.
NAMES: dict[str, list[str]] = {
    "embedding": ["model.embed_tokens"],
    "blocks.*.attention_norm": ["model.layers.*.input_layernorm"],
    "blocks.*.attention.qkv": [f"model.layers.*.self_attn.{part}_proj" for part in "qkv"],
    "blocks.*.attention.q_norm": ["model.layers.*.self_attn.q_norm"],
    "blocks.*.attention.k_norm": ["model.layers.*.self_attn.k_norm"],
    "blocks.*.attention.out": ["model.layers.*.self_attn.o_proj"],
    "blocks.*.mlp_norm": ["model.layers.*.post_attention_layernorm"],
    "blocks.*.mlp.gate_up": [f"model.layers.*.mlp.{part}_proj" for part in ("gate", "up")],
    "blocks.*.mlp.down": ["model.layers.*.mlp.down_proj"],
    "norm": ["model.norm"],
    "head": ["lm_head"],
}
# Of models that norm what they add: the name says after what, and Llama's says before what.
NORMS_AFTER: dict[str, list[str]] = {
    "blocks.*.attention_post_norm": ["model.layers.*.post_attention_layernorm"],
    "blocks.*.mlp_norm": ["model.layers.*.pre_feedforward_layernorm"],
    "blocks.*.mlp_post_norm": ["model.layers.*.post_feedforward_layernorm"],
}
FUSED: dict[str, list[str]] = {
    "blocks.*.attention.qkv": ["model.layers.*.self_attn.qkv_proj"],
    "blocks.*.mlp.gate_up": ["model.layers.*.mlp.gate_up_proj"],
}


@dataclass(frozen=True, slots=True)
class Family:
    """What is true of all its checkpoints. What differs between them stands in their config."""

    name: str
    read_config: Callable[[Fields], DecoderConfig]
    other_names: Mapping[str, list[str]]
    """Of `NAMES`, those that differ."""

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of a layer's tensors, by the layer's path."""
        return {**NAMES, **self.other_names}


# Old checkpoints carry frequencies, which follow from the config.
IGNORED = [r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"]
