"""What schemathesis is told of this API: read by its command line (`SCHEMATHESIS_HOOKS`), see `test_openapi.py`.

Its own checks hold answers against the description. Those here know more: the form of errors, the events of streams, and that a request
which fits its schema is refused for nothing but what no schema can say.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any

import jsonschema
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import AcceptedNegativeData, negative_data_rejection

# What fields must be by themselves is in the schema. Refused beside that: what depends on other fields, on what came before, on the
# model's files, or on a language of its own (grammars).
CODES_OF_MORE_THAN_A_FIELD = {
    "conflicting_parameters",
    "context_length_exceeded",
    "grammar_too_complex",
    "invalid_grammar",
    "model_not_found",
    "never_fits",
    "response_not_found",
    "wrong_model_kind",
}
# The same, where it is told as a wrong value, since that is what the one who reads it has to change.
MORE_THAN_A_FIELD = [
    r"`(sampling_params\.)?max_tokens` is 0; allowed: an integer from 1",  # 0 needs `echo`
    r"`(sampling_params\.)?min_tokens` is \d+; allowed: an integer from 0 to `max_tokens`",
    r"`thinking\.budget_tokens` is \d+; allowed: less than `max_tokens`",
    r"`(sampling_params\.)?logit_bias` is an object with the key",
    r"`n` is \d+, for each of \d+ prompts",
    r"`(sampling_params\.)?stop(_sequences)?` is \d+ bytes of text",  # a schema counts characters
    r"`.*arguments` is .*; allowed: a text that holds a JSON object",
    r"`tool_choice(\.function|\.allowed_tools)?(\.tools\[\d+\])?(\.function)?\.name` is .*; allowed: the name of one of `tools`",
    r"`tools\[\d+\]\.(function\.parameters|parameters|input_schema)` is .*; allowed: a schema that objects fit",
    r"`prompt` is missing",  # needed unless there are embeddings
    r"`messages\[\d+\]\.content` is missing",  # needed unless there are calls
    r"`messages\[\d+\]\.content\[\d+\]\.type` is \"refusal\"",  # in an assistant's message alone
    r"`messages\[\d+\]\.tool_call_id` is missing",  # needed by the role `tool`
    r"`messages\[\d+\]\.content\[\d+\]\.(tool_use_id|id)` is ",
    r"`input(\[\d+\]\.call_id)?` is an output for the call",
    r"`previous_response_id` is ",
    r"`(sampling_params\.)?structured_outputs` is an object that asks for none",  # one of its fields
    r"`(sampling_params\.)?(structured_outputs|response_format|text|guided).* a JSON schema: an object, or the text of one",
    r"`(sampling_params\.)?structured_outputs\.structural_tag",  # a text that is JSON, of a form of its own
    r"`input\[\d+\]\.encrypted_content` is a text; allowed: null, or ",
    r"`(sampling_params\.)?(request_id|prompt|token_ids|input|tokens|documents|queries).* has \d+ (tokens|bytes)",
    r"`(input_file_id|completion_window|output_expires_after)` is ",
    r"`expires_after`",
    r"`x-explain` is 1; allowed: 0",
    r"`after` is ",
    r"the model .* is not served here",
    r"`(text_1|queries|data_1)` is a list of \d+ texts, and",
]
# What a schema refuses and a server may take.
NO_MISTAKES = [
    "in header - object with unexpected properties",
]
FEW_TOKENS = 6
LIMITS = {"/v1/chat/completions": ("max_completion_tokens", "max_tokens"), "/v1/responses": ("max_output_tokens",)}


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """What is described is all that there is: no answer may have more."""
    for schema in raw_schema["components"]["schemas"].values():
        close(schema)


def close(schema: dict[str, Any]) -> None:
    if schema.get("type") == "object" and schema.get("properties") and "oneOf" not in schema and "anyOf" not in schema:
        schema.setdefault("additionalProperties", False)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Short answers of the served model: what is tested is the way there and back. No field is taken away, and no wrong value made right."""
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str) and body["model"]:
        body["model"] = os.environ["MODEL"]  # any other is a 404, which tells nothing of the rest
    limits = LIMITS.get(case.operation.path, ())
    if limits and not any(limit in body for limit in limits):
        body[limits[0]] = FEW_TOKENS
    for sampling in (body, body.get("sampling_params")):
        if isinstance(sampling, dict):
            shorten(sampling)


def shorten(sampling: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"):
        value = sampling.get(name)
        if type(value) in (int, float) and value == int(value) and FEW_TOKENS < value <= int(os.environ["CONTEXT"]):
            sampling[name] = FEW_TOKENS if name != "min_tokens" else 1


@schemathesis.check
def errors_have_one_form(ctx: Any, response: Any, case: Any) -> None:
    """One envelope on every route, Anthropic's under `/v1/messages`; nothing of the server's inside in it."""
    if response.status_code < 400 or case.method.upper() == "HEAD":
        return
    kind = response.headers.get("content-type", [""])[0]
    assert kind == "application/json", f"an error is {kind!r}"
    body = json.loads(response.content)
    if case.operation.path.startswith("/v1/messages"):
        assert set(body) == {"type", "error", "request_id"}, body
        assert body["type"] == "error", body
        assert set(body["error"]) == {"type", "message"}, body
    else:
        assert set(body["error"]) == {"message", "type", "param", "code", "code_name"}, body
        assert body["error"]["code"] == response.status_code, body
    for inside in ("panicked", "src/", ".rs", "Traceback", "RUST_BACKTRACE"):
        assert inside not in re.sub(r"`[^`]*`|\"[^\"]*\"", "", body["error"]["message"]), body


@schemathesis.check
def the_server_is_never_at_fault(ctx: Any, response: Any, case: Any) -> None:
    """No 5xx, but for the one that a client asks for by a time that is too short."""
    is_too_late = response.status_code == 504 and "x-request-timeout-ms" in (case.headers or {})
    assert response.status_code < 500 or is_too_late, response.content


@schemathesis.check
def what_does_not_fit_is_refused(ctx: Any, response: Any, case: Any) -> None:
    """As schemathesis's own check, but for `NO_MISTAKES`: proxies, for one, add headers that nobody knows."""
    try:
        negative_data_rejection(ctx, response, case)
    except AcceptedNegativeData as accepted:
        if not any(known in str(accepted.message) for known in NO_MISTAKES):
            raise


@schemathesis.check
def what_fits_is_taken(ctx: Any, response: Any, case: Any) -> None:
    """A request that fits its schema is refused for nothing but what no schema can say."""
    meta = case.meta
    if response.status_code != 400 or meta is None or meta.generation.mode is not GenerationMode.POSITIVE:
        return
    error = json.loads(response.content)["error"]
    if error.get("code_name") in CODES_OF_MORE_THAN_A_FIELD:
        return
    message = error["message"]
    assert any(re.match(known, message) for known in MORE_THAN_A_FIELD + anthropics(case)), message


def anthropics(case: Any) -> list[str]:
    """Errors without a `code_name` are known by their words."""
    if not case.operation.path.startswith("/v1/messages"):
        return []
    return [
        r"`[^`]*` cannot be used",
        r"`[^`]*` has \d+ (tokens|bytes)",
        r"`[^`]*` is (only allowed|.*, like another tool's)",
        r"`[^`]*` cannot go together with",
        r"`messages` must have at least one message",  # an assistant's turn without any block
        r"`(thinking|output_config\.effort)` is .*, and the model",
        r"`messages` end with a `tool_use` block",
        r"the model gives",
    ]


@schemathesis.check
def streams_are_as_described(ctx: Any, response: Any, case: Any) -> None:
    """Each event's data fits the schema of events, and the stream comes to its end."""
    kind = response.headers.get("content-type", [""])[0]
    if not kind.startswith("text/event-stream"):
        return
    content = case.operation.schema.raw_schema["paths"][case.operation.path][case.method.lower()]["responses"]["200"][
        "content"
    ]
    events = [event for event in response.content.decode().split("\n\n") if event and not event.startswith(":")]
    data = [event.split("data: ", 1)[1] for event in events]
    of_responses = {"response.completed", "response.incomplete", "response.failed", "error"}
    if case.operation.path.startswith(("/v1/responses", "/v1/messages")):
        last = of_responses if case.operation.path.startswith("/v1/responses") else {"message_stop", "error"}
        assert json.loads(data[-1])["type"] in last, events[-1]
    else:
        assert data.pop() == "[DONE]", events[-1]
    schema = content["text/event-stream"]["x-event-schema"]
    for value in map(json.loads, data):
        if set(value) != {"error"} and "pelton" not in value:
            validator(json.dumps(case.operation.schema.raw_schema["components"]), json.dumps(schema)).validate(value)


@functools.lru_cache(maxsize=16)
def validator(components: str, schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**json.loads(schema), "components": json.loads(components)})
