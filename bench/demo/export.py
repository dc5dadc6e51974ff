"""Writes a model in Hugging Face layout: bf16 weights, tokenizer, chat template, generation defaults.

python bench/demo/export.py bench/models/demo OUT     # from a run's checkpoint, also while it is still training
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from model import CONFIG
from render import TEMPLATE, tokenizer_config
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

# The end of a turn, and the end of a plain text.
END_IDS = [2, 0]


def export(weights: dict[str, torch.Tensor], tokenizer_file: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    small = Qwen3ForCausalLM(Qwen3Config(**CONFIG))
    small.load_state_dict(weights)
    small = small.to(torch.bfloat16).eval()
    small.config.dtype = torch.bfloat16
    small.generation_config = GenerationConfig(
        eos_token_id=END_IDS, pad_token_id=0, do_sample=True, temperature=0.3, top_p=0.9
    )
    small.save_pretrained(out)
    shutil.copyfile(tokenizer_file, out / "tokenizer.json")
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2) + "\n")
    (out / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    run, target = Path(sys.argv[1]), Path(sys.argv[2])
    export(torch.load(run / "checkpoint.pt", weights_only=True)["model"], run / "tokenizer.json", target)
