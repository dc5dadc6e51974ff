"""A family of checkpoints: how its config.json is read, and what its tensors and fields are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    "blocks.*.mlp.up": ["model.layers.*.mlp.up_proj"],
    "blocks.*.mlp.down": ["model.layers.*.mlp.down_proj"],
    "norm": ["model.norm"],
    "head": ["lm_head"],
    "head.out.linear": ["score"],  # of those that classify
}
# Of models that norm what they add: the name says after what, and Llama's says before what.
NORMS_AFTER: dict[str, list[str]] = {
    "blocks.*.attention_post_norm": ["model.layers.*.post_attention_layernorm"],
    "blocks.*.mlp_norm": ["model.layers.*.pre_feedforward_layernorm"],
    "blocks.*.mlp_post_norm": ["model.layers.*.post_feedforward_layernorm"],
}
# Gemma 3 beside what looks at images: as files have it, as transformers 5 calls it, and as it did without the head.
BESIDE_IMAGES: dict[str, list[str]] = {**NORMS_AFTER, "head": ["language_model.lm_head"]}
BESIDE_IMAGES_BEGINS = ("language_model.model.", "model.language_model.", "language_model.")
# Old checkpoints carry frequencies, which follow from the config, and masks.
IGNORED = (
    r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
    r"(gpt_neox\.)?layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
)
BESIDE_IMAGES_IGNORED = (*IGNORED, r"(model\.)?(vision_tower|multi_modal_projector)\..*")
FUSED: dict[str, list[str]] = {
    "blocks.*.attention.qkv": ["model.layers.*.self_attn.qkv_proj"],
    "blocks.*.mlp.gate_up": ["model.layers.*.mlp.gate_up_proj"],
}
PLAIN_MLP: dict[str, list[str]] = {
    "blocks.*.mlp.up": ["model.layers.*.mlp.c_fc"],
    "blocks.*.mlp.down": ["model.layers.*.mlp.c_proj"],
}
GPT2: dict[str, list[str]] = {
    "embedding": ["transformer.wte"],
    "positions": ["transformer.wpe"],
    "blocks.*.attention_norm": ["transformer.h.*.ln_1"],
    "blocks.*.attention.qkv": ["transformer.h.*.attn.c_attn"],
    "blocks.*.attention.out": ["transformer.h.*.attn.c_proj"],
    "blocks.*.mlp_norm": ["transformer.h.*.ln_2"],
    "blocks.*.mlp.up": ["transformer.h.*.mlp.c_fc"],
    "blocks.*.mlp.down": ["transformer.h.*.mlp.c_proj"],
    "norm": ["transformer.ln_f"],
}
GPT_NEOX: dict[str, list[str]] = {
    "embedding": ["gpt_neox.embed_in"],
    "blocks.*.attention_norm": ["gpt_neox.layers.*.input_layernorm"],
    "blocks.*.attention.qkv": ["gpt_neox.layers.*.attention.query_key_value"],
    "blocks.*.attention.out": ["gpt_neox.layers.*.attention.dense"],
    "blocks.*.mlp_norm": ["gpt_neox.layers.*.post_attention_layernorm"],
    "blocks.*.mlp.up": ["gpt_neox.layers.*.mlp.dense_h_to_4h"],
    "blocks.*.mlp.down": ["gpt_neox.layers.*.mlp.dense_4h_to_h"],
    "norm": ["gpt_neox.final_layer_norm"],
    "head": ["embed_out"],
}
BLOOM: dict[str, list[str]] = {
    "embedding": ["transformer.word_embeddings"],
    "embedding_norm": ["transformer.word_embeddings_layernorm"],
    "blocks.*.attention_norm": ["transformer.h.*.input_layernorm"],
    "blocks.*.attention.qkv": ["transformer.h.*.self_attention.query_key_value"],
    "blocks.*.attention.out": ["transformer.h.*.self_attention.dense"],
    "blocks.*.mlp_norm": ["transformer.h.*.post_attention_layernorm"],
    "blocks.*.mlp.up": ["transformer.h.*.mlp.dense_h_to_4h"],
    "blocks.*.mlp.down": ["transformer.h.*.mlp.dense_4h_to_h"],
    "norm": ["transformer.ln_f"],
}


@dataclass(frozen=True, slots=True)
class Family:
    """What is true of all its checkpoints. What differs between them stands in their config."""

    name: str
    read_config: Callable[[Fields], DecoderConfig]
    other_names: Mapping[str, list[str]]
    """Of `NAMES`, those that differ."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What its config.json calls some fields, by Llama's names for them."""
    begins: Sequence[str] = ()
    """Of a model within another: what names may begin with, in place of the first word that the model alone has. The usual first."""
    ignored: Sequence[str] = IGNORED
    """Tensors that are of no use to text: as patterns."""

    def as_stored(self, names: Collection[str]) -> Family:
        """With names as a checkpoint has them. Some were saved from the model without its head, whose names lack the first
        word; and transformers 5 calls every head `lm_head`."""
        own = self.names
        first, _, rest = own["embedding"][0].partition(".")
        begins = self.begins or (f"{first}.", "")
        begin = next((begin for begin in begins if f"{begin}{rest}.weight" in names), begins[0])
        own = {path: [re.sub(rf"^{first}\.", begin, name) for name in parts] for path, parts in own.items()}
        if f"{own['head'][0]}.weight" not in names and f"{NAMES['head'][0]}.weight" in names:
            own["head"] = NAMES["head"]
        return replace(self, other_names=own)

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of a layer's tensors, by the layer's path."""
        return {**NAMES, **self.other_names}
