"""The tokenizer: byte-level BPE, so that every text can be written, with single digits, so that numbers have one spelling."""

import collections
import itertools
import json
from collections.abc import Iterator

from render import END_OF_TEXT, SPECIAL, TOOL_MARKS, text_of
from texts import plain_texts, talks
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONVERSATIONS = 60_000
# Of the vocabulary, this many are words with their space.
SPACED = 1_000
SPACE = "Ġ"  # as byte-level BPE writes it

# Words with the space before them, single digits, runs of signs, line ends: the split that Qwen uses.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same with each space and sign apart from the words, for learning how words are made.
_APART = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|[\r\n]+|[^\S\r\n]"


def _without_marks(text: str) -> str:
    for mark in SPECIAL + TOOL_MARKS:
        text = text.replace(mark, "\n")
    return text


def _tokenizer(model: models.BPE, split: str) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    """What the model learns from, without made-up words: so a word that nobody knows falls into short pieces, easy to copy."""
    for talk in itertools.islice(talks(seed, long_share=0.0, invents=False), CONVERSATIONS):
        yield _without_marks(text_of(talk))
    yield from itertools.islice(plain_texts(seed), CONVERSATIONS // 20)


def train_tokenizer(seed: int) -> Tokenizer:
    """Learns the merges in two passes, so that a word has the same pieces with and without a space before it.

    First how words are made, spaces apart; then, as the last merges, the commonest beginnings of words join their space. Those that
    begin with a capital never do: a name is the same tokens in a question and in JSON.
    """
    words = _tokenizer(models.BPE(), _APART)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - SPACED - len(TOOL_MARKS),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(_texts(seed), trainer)

    after_space: collections.Counter[str] = collections.Counter()
    for text in _texts(seed):
        tokens = words.encode(text).tokens
        after_space.update(second for first, second in itertools.pairwise(tokens) if first == SPACE)
    joined = [
        token
        for token, _ in after_space.most_common()
        if not token[0].isupper() and not token.isdigit() and token[0] not in "ĠĊ"
    ]

    state = json.loads(words.to_str())["model"]
    vocabulary: dict[str, int] = state["vocab"]
    merges = [(left, right) for left, right in state["merges"]]
    for token in joined[:SPACED]:
        vocabulary[SPACE + token] = len(vocabulary)
        merges.append((SPACE, token))

    tokenizer = _tokenizer(models.BPE(vocab=vocabulary, merges=merges), _SPLIT)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in SPECIAL])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in TOOL_MARKS])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    return tokenizer
