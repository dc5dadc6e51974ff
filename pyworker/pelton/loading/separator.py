"""Which token stands between the two texts of a pair, from the tokenizer's files beside a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pelton.loading.checkpoint import read_json

USUAL = "[SEP]"


def separator_of(folder: Path, config: dict[str, Any]) -> int | None:
    """Its id; None: nothing here names one, and then every text is the first of its pair."""
    if not _parts_pairs(folder, config):
        return None
    said = config.get("sep_token_id")
    if isinstance(said, int):
        return said
    word = _word(folder)
    if (folder / "tokenizer.json").exists():
        return _in_tokenizer(read_json(folder / "tokenizer.json"), word)
    if (folder / "vocab.txt").is_file():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        return lines.index(word) if word in lines else None
    return None


def _parts_pairs(folder: Path, config: dict[str, Any]) -> bool:
    """Whether the tokenizer tells the model which text of a pair a token is of: RoBERTa's and its kin do not, whatever model they serve."""
    path = folder / "tokenizer_config.json"
    said = read_json(path) if path.exists() else {}
    names = said.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    kind = str(said.get("tokenizer_class") or config.get("tokenizer_class"))
    return kind.removesuffix("Fast") not in ("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer")


def _word(folder: Path) -> str:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            said = read_json(folder / name).get("sep_token")
            word = said.get("content") if isinstance(said, dict) else said
            if isinstance(word, str):
                return word
    return USUAL


def _in_tokenizer(tokenizer: dict[str, Any], word: str) -> int | None:
    for token in tokenizer.get("added_tokens") or []:
        if token.get("content") == word:
            return int(token["id"])
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found = vocab.get(word) if isinstance(vocab, dict) else None
    return found if isinstance(found, int) else None
