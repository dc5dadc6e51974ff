"""An encoder in numbers, and how the families' config.json are read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pelton_kernels.ops import Function

from pelton.kv import Division, divide
from pelton.layers.mlp import GATES
from pelton.layers.rotary import NONE, Rope
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models.config import ACTIVATIONS, LAYERS_MAX


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes and switches of an encoder. What is not said is as in BERT."""

    vocab: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    norm_eps: float
    activation: Function
    positions: int  # the longest text
    ropes: tuple[Rope, ...]  # by layer
    windows: tuple[int | None, ...]  # by layer: how far a token sees to each side, itself included; None: everything
    segments: int = 0  # rows of the table of segments; 0: there is none
    separator: int | None = None  # what divides the two texts of a pair, whose second one is segment 1
    has_learned_positions: bool = True
    positions_skipped: int = 0  # rows of their table that no token has
    positions_unused: int = 0  # rows behind them: the checkpoint is for shorter texts
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    is_gated: bool = False  # the MLP
    is_fused: bool = False  # in the checkpoint: queries, keys and values; gate and up
    norms_before: bool = False  # what attention and MLP read is normed, and not their sum with it

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise LoadError(f"`hidden_size` {self.width} is no multiple of `num_attention_heads` {self.heads}")
        if self.head_dim % 2:
            raise LoadError(f"`hidden_size` over `num_attention_heads` is {self.head_dim}; supported: an even number")

    def for_texts_of(self, tokens: int) -> EncoderConfig:
        """With so many positions and no more."""
        return replace(self, positions=tokens, positions_unused=self.positions - tokens)

    @property
    def head_dim(self) -> int:
        """Of each head."""
        return self.width // self.heads

    @property
    def kv_heads(self) -> int:
        """As many as of queries."""
        return self.heads

    @property
    def division(self) -> Division:
        """All layers of one kind: a text is in its blocks for one step alone, so none comes home earlier for a window."""
        return divide([None] * self.layers)


def bert(fields: Fields, separator: int | None) -> EncoderConfig:
    """arXiv:1810.04805: norms after each sum, learned positions, and segments for pairs of texts."""
    segments = fields.count("type_vocab_size", 2)
    return _bert(fields, segments, separator if segments > 1 else None, positions=512)


def roberta(fields: Fields, _separator: int | None) -> EncoderConfig:
    """arXiv:1907.11692, and 1911.02116 (XLM): BERT without segments, whose positions begin behind that of padding."""
    padding = fields.count("pad_token_id", 1, least=0)
    skipped = padding + 1
    if fields.count("max_position_embeddings", 512) <= skipped:
        raise LoadError(
            f"`max_position_embeddings` in config.json is {fields.get('max_position_embeddings')}; supported: more than {skipped}, "
            "as positions begin behind `pad_token_id`"
        )
    return _bert(fields, fields.count("type_vocab_size", 2), None, positions=512, skipped=skipped)


def _bert(fields: Fields, segments: int, separator: int | None, positions: int, skipped: int = 0) -> EncoderConfig:
    for name in ("is_decoder", "add_cross_attention"):
        if fields.flag(name):
            raise LoadError(f"`{name}` in config.json is true; supported: false")
    fields.word("position_embedding_type", ["absolute"], "absolute")
    layers = _layers(fields)
    return EncoderConfig(
        vocab=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        layers=layers,
        heads=fields.count("num_attention_heads"),
        mlp_width=fields.count("intermediate_size"),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[fields.word("hidden_act", list(ACTIVATIONS), "gelu")],
        positions=fields.count("max_position_embeddings", positions) - skipped,
        ropes=(NONE,) * layers,
        windows=(None,) * layers,
        segments=segments,
        separator=separator,
        positions_skipped=skipped,
    )


def modernbert(fields: Fields, _separator: int | None) -> EncoderConfig:
    """arXiv:2412.13663: norms before, gates, rotary positions, and windows in two layers of three."""
    layers = _layers(fields)
    every = fields.count("global_attn_every_n_layers", 3)
    is_local = [layer % every != 0 for layer in range(layers)]
    if "layer_types" in fields:
        words = fields.words("layer_types", ["full_attention", "sliding_attention"], layers)
        is_local = [word == "sliding_attention" for word in words]
    far = _rope(fields, "full_attention", fields.number("global_rope_theta", 160_000.0))
    near = _rope(fields, "sliding_attention", fields.number_or_null("local_rope_theta", 10_000.0) or far.theta)
    window = fields.count("local_attention", 128) // 2 + 1  # a token's own is counted, as everywhere here
    served = [name for name, function in ACTIVATIONS.items() if function in GATES]
    bias = fields.flag("attention_bias"), fields.flag("mlp_bias"), fields.flag("norm_bias")
    return EncoderConfig(
        vocab=fields.count("vocab_size"),
        width=fields.count("hidden_size"),
        layers=layers,
        heads=fields.count("num_attention_heads"),
        mlp_width=fields.count("intermediate_size"),
        norm_eps=fields.number("norm_eps", 1e-5),
        activation=ACTIVATIONS[fields.word("hidden_activation", served, "gelu")],
        positions=fields.count("max_position_embeddings", 8192),
        ropes=tuple(near if local else far for local in is_local),
        windows=tuple(window if local else None for local in is_local),
        has_learned_positions=False,
        attention_bias=bias[0],
        mlp_bias=bias[1],
        norm_bias=bias[2],
        is_gated=True,
        is_fused=True,
        norms_before=True,
    )


def _rope(fields: Fields, layers: str, theta: float) -> Rope:
    """transformers 5 writes an object for each sort of layers; before it stood two thetas."""
    if fields.get("rope_scaling"):
        raise LoadError("`rope_scaling` is set in config.json; supported for this family: none")
    given = fields.object("rope_parameters").object(layers)
    given.word("rope_type", ["default"], "default")
    return Rope("default", given.number("rope_theta", theta))


def _layers(fields: Fields) -> int:
    layers = fields.count("num_hidden_layers")
    if layers > LAYERS_MAX:
        raise LoadError(f"`num_hidden_layers` in config.json is {layers}; supported: up to {LAYERS_MAX}")
    return layers
