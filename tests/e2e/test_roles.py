"""What systems and developers say reaches the model, whatever roles its template knows, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import Variant, make_checkpoint
from support.server import Server, serving

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
# As Qwen3.5's: one message of a system's, at the beginning, and no developers.
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{% if not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}[S {{ m.content }}]"
    "{% elif m.role in ['user', 'assistant'] %}[{{ m.role }} {{ m.content }}]"
    "{% else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}"
)


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("strict") / "strict", Variant("strict", "llama", {}))
    (folder / "chat_template.jinja").write_text(STRICT)
    with serving(folder) as running:
        yield running


def rendered(server: Server, messages: list[dict[str, str]]) -> str:
    ids = server.post(CHAT + "/render", {"messages": messages}).json()["token_ids"]
    return str(server.post("/detokenize", {"tokens": ids}).json()["prompt"])


def test_what_comes_first_is_one_message(strict: Server) -> None:
    both = [said("system", "a"), said("developer", "b"), said("user", "c")]
    assert rendered(strict, both) == "[S a\n\nb][user c]"
    assert rendered(strict, both[1:]) == "[S b][user c]"
    chat = strict.post(CHAT, {"messages": both, "max_tokens": 2}).json()["usage"]["prompt_tokens"]
    body = {"instructions": "a", "input": both[1:], "max_output_tokens": 2}
    response = strict.post(RESPONSES, body)
    assert response.status_code == 200, response.text
    counted = strict.post(RESPONSES + "/input_tokens", body).json()["input_tokens"]
    assert response.json()["usage"]["input_tokens"] == counted == chat


def test_what_would_be_lost_is_refused_by_its_place(strict: Server) -> None:
    late: list[Any] = [said("user", "a"), said("assistant", "b"), said("developer", "c"), said("user", "d")]
    for path, name, param in ((CHAT, "messages", "messages[2].role"), (RESPONSES, "input", "input")):
        refused = strict.post(path, {name: late})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param, refused.text
