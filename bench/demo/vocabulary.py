"""The tokenizer: byte-level BPE, so that every text can be written, with single digits, so that numbers have one spelling."""

import itertools

from render import END_OF_TEXT, SPECIAL, TOOL_MARKS, text_of
from texts import plain_texts, talks
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONVERSATIONS = 60_000

# Words with the space before them, single digits, runs of signs, line ends: the split that Qwen uses.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _without_marks(text: str) -> str:
    for mark in SPECIAL + TOOL_MARKS:
        text = text.replace(mark, "\n")
    return text


def train_tokenizer(seed: int) -> Tokenizer:
    """Learns the merges from the texts that the model learns from, made-up words left out.

    So a word that nobody knows falls into short pieces, the same ones with and without a space before it: easy to copy.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    chats = (
        _without_marks(text_of(talk))
        for talk in itertools.islice(talks(seed, long_share=0.0, invents=False), CONVERSATIONS)
    )
    lines = itertools.islice(plain_texts(seed), CONVERSATIONS // 20)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TOOL_MARKS),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.chain(chats, lines), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in TOOL_MARKS])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    return tokenizer
