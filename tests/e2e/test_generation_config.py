"""What a checkpoint's generation_config.json recommends: said at the start, and left out with `--generation-config none`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import Variant, make_checkpoint
from support.server import serving

GIVEN = {"temperature": 0.25, "top_k": 5, "top_p": 0.5, "max_new_tokens": 7}
SAID = "temperature 0.25, top_k 5, top_p 0.5, max_new_tokens 7"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with defaults of its own."""
    made = make_checkpoint(tmp_path_factory.mktemp("defaults") / "defaults", Variant("defaults", "llama", {}))
    path = made / "generation_config.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, **GIVEN}))
    return made


@pytest.mark.parametrize("setting", ["auto", "none"])
def test_it_is_said_once_and_holds_or_does_not(folder: Path, setting: str) -> None:
    with serving(folder, "--generation-config", setting) as server:
        said = [line for line in server.log if SAID in line]
        assert len(said) == 1, server.log
        assert ("not used" in said[0]) is (setting == "none")
        body = {"prompt": "Once", "ignore_eos": True, "seed": 1}
        usage = server.post("/v1/completions", body).json()["usage"]
        assert usage["completion_tokens"] == (7 if setting == "auto" else 16)
        told = server.post("/v1/responses", {"input": "Once"}).json()
        assert (told["temperature"], told["top_p"]) == ((0.25, 0.5) if setting == "auto" else (1.0, 1.0))
