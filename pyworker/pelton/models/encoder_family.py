"""Families of encoders: how their config.json is read, what their tensors are called, and what stands behind the pooling of
those that classify."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pelton_kernels.ops import Pooling

from pelton.loading.config import Fields
from pelton.models.config import ACTIVATIONS
from pelton.models.encoder_config import EncoderConfig, bert, modernbert, roberta
from pelton.models.pooled import HeadLayer

BERT: dict[str, list[str]] = {
    "embedding": ["bert.embeddings.word_embeddings"],
    "segments": ["bert.embeddings.token_type_embeddings"],
    "positions": ["bert.embeddings.position_embeddings"],
    "embedding_norm": ["bert.embeddings.LayerNorm"],
    "blocks.*.attention.qkv": [f"bert.encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value")],
    "blocks.*.attention.out": ["bert.encoder.layer.*.attention.output.dense"],
    "blocks.*.attention_norm": ["bert.encoder.layer.*.attention.output.LayerNorm"],
    "blocks.*.mlp.up": ["bert.encoder.layer.*.intermediate.dense"],
    "blocks.*.mlp.down": ["bert.encoder.layer.*.output.dense"],
    "blocks.*.mlp_norm": ["bert.encoder.layer.*.output.LayerNorm"],
}
ROBERTA = {path: [f"roberta{name.removeprefix('bert')}" for name in names] for path, names in BERT.items()}
MODERNBERT: dict[str, list[str]] = {
    "embedding": ["model.embeddings.tok_embeddings"],
    "embedding_norm": ["model.embeddings.norm"],
    "blocks.*.attention_norm": ["model.layers.*.attn_norm"],
    "blocks.*.attention.qkv": ["model.layers.*.attn.Wqkv"],
    "blocks.*.attention.out": ["model.layers.*.attn.Wo"],
    "blocks.*.mlp_norm": ["model.layers.*.mlp_norm"],
    "blocks.*.mlp.gate_up": ["model.layers.*.mlp.Wi"],
    "blocks.*.mlp.down": ["model.layers.*.mlp.Wo"],
    "norm": ["model.final_norm"],
}

# What the first checkpoints of BERT call a norm's gain and bias.
OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

Classifier = Callable[[Fields, EncoderConfig, int], tuple[Pooling, tuple[HeadLayer, ...]]]


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """What is true of all its checkpoints."""

    name: str
    read_config: Callable[[Fields, int | None], EncoderConfig]
    """From config.json and the id of the token between the texts of a pair, if there is one."""
    names: Mapping[str, list[str]]
    """Of a layer's tensors, by its path."""
    classifier: Classifier
    """How those that classify pool, and the layers behind it, for so many classes."""
    ignored: tuple[str, ...]
    """Tensors that are of no use to vectors, where nothing wants them: as patterns."""

    def as_stored(self, stored: Collection[str]) -> EncoderFamily:
        """With names as a checkpoint has them: those saved from the encoder alone lack the first word."""
        first, _, rest = self.names["embedding"][0].partition(".")
        if f"{rest}.weight" not in stored or f"{first}.{rest}.weight" in stored:
            return self
        bare = {path: [name.removeprefix(f"{first}.") for name in names] for path, names in self.names.items()}
        return replace(self, names=bare)


def _bert_classes(_fields: Fields, config: EncoderConfig, classes: int) -> tuple[Pooling, tuple[HeadLayer, ...]]:
    """BERT's own pooler, which it was trained with, reads the first token."""
    return "first", (HeadLayer("dense", config.width, True, "tanh"), HeadLayer("out", classes, True))


def _modernbert_classes(fields: Fields, config: EncoderConfig, classes: int) -> tuple[Pooling, tuple[HeadLayer, ...]]:
    pooling: Pooling = "mean" if fields.word("classifier_pooling", ["cls", "mean"], "cls") == "mean" else "first"
    activation = ACTIVATIONS[fields.word("classifier_activation", list(ACTIVATIONS), "gelu")]
    bias = fields.flag("classifier_bias")
    dense = HeadLayer("dense", config.width, bias, activation, config.norm_eps, config.norm_bias)
    return pooling, (dense, HeadLayer("out", classes, True))


_POOLER = (r"((roberta|bert)\.)?pooler\.dense\.(weight|bias)", r"((roberta|bert)\.)?embeddings\.position_ids")
_BERT = EncoderFamily(
    "bert",
    bert,
    BERT | {"head.dense.linear": ["bert.pooler.dense"], "head.out.linear": ["classifier"]},
    _bert_classes,
    (*_POOLER, r"cls\..*"),
)
_ROBERTA = EncoderFamily(
    "roberta",
    roberta,
    ROBERTA | {"head.dense.linear": ["classifier.dense"], "head.out.linear": ["classifier.out_proj"]},
    _bert_classes,
    (*_POOLER, r"lm_head\..*"),
)
_MODERNBERT = EncoderFamily(
    "modernbert",
    modernbert,
    MODERNBERT
    | {"head.dense.linear": ["head.dense"], "head.dense.norm": ["head.norm"], "head.out.linear": ["classifier"]},
    _modernbert_classes,
    (r"head\.(dense|norm)\.(weight|bias)", r"decoder\.(weight|bias)"),
)
# By the first word of the names that checkpoints give their architectures.
ENCODERS = {"Bert": _BERT, "Roberta": _ROBERTA, "XLMRoberta": _ROBERTA, "ModernBert": _MODERNBERT}
