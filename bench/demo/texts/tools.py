"""Conversations with tools: which call to make, with which arguments, and what to say when its result is there."""

import json
from typing import Any

from .chat import knowledge, small_talk
from .draw import Draw, Talk, roughen
from .toolbox import CALCULATE, DEMO_TOOLS, OTHER_TOOLS, WEATHER, Known, Tool, made_up, schema, some_city


def call_text(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _request(draw: Draw, known: Known) -> tuple[str, dict[str, Any]]:
    arguments = {param.name: param.make(draw) for param in known.params if not param.optional}
    ask = draw.phrase(known.asks).format(**arguments)
    if known is WEATHER and draw.chance(0.35):
        unit = draw.any(["celsius", "fahrenheit"])
        ask = (
            ask.rstrip(".?")
            + draw.any([" in {u}", " in degrees {u}", ", in {u}", " ({u})"]).format(
                u=draw.any([unit, unit.capitalize()])
            )
            + ask[len(ask.rstrip(".?")) :]
        )
        arguments["unit"] = unit
    return ask, arguments


def _company(draw: Draw, known: Known) -> list[Known]:
    """The tools that stand in the list beside the one that is meant."""
    others = (
        draw.random.sample(DEMO_TOOLS + OTHER_TOOLS, draw.any([0, 1, 1, 2, 2]))
        if known not in DEMO_TOOLS or draw.chance(0.4)
        else [tool for tool in DEMO_TOOLS if draw.chance(0.7)]
    )
    if draw.chance(0.3):
        others = [*others, made_up(draw)]
    everyone = [known, *(other for other in others if other.name != known.name)]
    draw.random.shuffle(everyone)
    return everyone


def tool_call(draw: Draw) -> Talk:
    """One request with tools in reach: a call (or two), then its result in words; sometimes the tools are of no use."""
    part = draw.random.random()
    known = draw.any(DEMO_TOOLS) if part < 0.45 else draw.phrase(OTHER_TOOLS) if part < 0.75 else made_up(draw)
    kind = "call demo tool" if part < 0.45 else "call other tool" if part < 0.75 else "call made-up tool"
    tools = [schema(tool, draw) for tool in _company(draw, known)]
    if draw.chance(0.12):
        idle = draw.any([small_talk, knowledge])(draw)
        return Talk("tools not needed", idle.messages, tools, idle.accept)
    if not draw.held and draw.chance(0.25):
        return _session(draw, known)
    return _round(draw, known, tools, kind)


def _session(draw: Draw, first: Known) -> Talk:
    """Several requests to the same tools, with other talk between them."""
    company = _company(draw, first)
    tools = [schema(tool, draw) for tool in company]
    messages: list[dict[str, Any]] = []
    for _ in range(draw.number(2, 4)):
        if draw.chance(0.25):
            messages += draw.any([small_talk, knowledge])(draw).messages
        else:
            messages += _round(draw, draw.any(company), tools, "session", stop_at_call=0.0).messages
    return Talk("session", messages, tools)


def _round(draw: Draw, known: Known, tools: list[Tool], kind: str, stop_at_call: float = 0.35) -> Talk:
    question, arguments = _request(draw, known)
    wanted = [arguments]
    if known is WEATHER and "unit" not in arguments and draw.chance(0.1):
        other = some_city(draw)
        question = draw.phrase(
            [
                "What is the weather in {a} and {b}?",
                "Weather in {a} and in {b}",
                "Compare the weather in {a} and {b}.",
                "How is the weather in {a} and {b}?",
            ]
        ).format(a=arguments["city"], b=other)
        wanted.append({"city": other})
    calls = [call_text(known.name, each) for each in wanted]
    user = {"role": "user", "content": roughen(draw, question) if known not in (CALCULATE,) else question}
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    if draw.chance(stop_at_call):
        return Talk(kind, [user, asked], tools, [{"name": known.name, "arguments": each} for each in wanted])
    messages: list[dict[str, Any]] = [user, asked]
    said = []
    for each in wanted:
        result, words = known.result(draw, each)
        messages.append({"role": "tool", "content": json.dumps(result, ensure_ascii=False)})
        said.append(words)
    answer = " ".join(said)
    messages.append({"role": "assistant", "content": answer})
    return Talk("tool result", messages, tools, [answer])
