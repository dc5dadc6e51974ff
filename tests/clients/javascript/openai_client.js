// OpenAI's JavaScript client: chats and responses, with its own helpers for streams, tools and types.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import {
  ABOUT_WEATHER, CITY, HEARD, hold, KEY, Person, QUESTION, refusal, RESULT, UNKNOWN_MODEL, V1, Weather,
} from "./conversation.js";

const client = new OpenAI({ baseURL: V1, apiKey: KEY, maxRetries: 0 });
const ask = { model: "demo", temperature: 0 };
const messages = [{ role: "user", content: QUESTION }];
const aboutWeather = [{ role: "user", content: ABOUT_WEATHER }];

await hold({
  async whole_and_streamed() {
    const whole = await client.chat.completions.create({ ...ask, messages });
    assert.match(whole.choices[0].message.content, HEARD);
    const stream = client.chat.completions.stream({ ...ask, messages, stream_options: { include_usage: true } });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const streamed = await stream.finalChatCompletion();
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(streamed.choices[0].message.content, text);
    assert.equal(streamed.choices[0].finish_reason, "stop");
    assert(whole.usage.completion_tokens > 0);
    assert.equal(streamed.usage.completion_tokens, whole.usage.completion_tokens);
    assert.equal(streamed.usage.prompt_tokens, whole.usage.prompt_tokens);
  },

  async tools() {
    const tools = [zodFunction({ name: "get_weather", parameters: Weather })];
    const tool_choice = { type: "function", function: { name: "get_weather" } };
    const whole = await client.chat.completions.parse({ ...ask, messages: aboutWeather, tools, tool_choice });
    const [call] = whole.choices[0].message.tool_calls;
    assert.deepEqual(call.function.parsed_arguments, { city: CITY });
    const stream = client.chat.completions.stream({ ...ask, messages: aboutWeather, tools, tool_choice: "required" });
    let deltas = "";
    stream.on("tool_calls.function.arguments.delta", (event) => (deltas += event.arguments_delta));
    const [streamed] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    assert.equal(deltas, streamed.function.arguments);
    assert.equal(streamed.function.arguments, call.function.arguments);
    const after = await client.chat.completions.create({
      ...ask,
      messages: [...aboutWeather, whole.choices[0].message, { role: "tool", tool_call_id: call.id, content: RESULT }],
      tools,
      tool_choice: "none",
    });
    assert(after.choices[0].message.content);
    assert.equal(after.choices[0].finish_reason, "stop");
  },

  async the_tool_runner() {
    const asked = [];
    const get_weather = zodFunction({
      name: "get_weather",
      parameters: Weather,
      function: ({ city }) => (asked.push(city), RESULT),
    });
    const runner = client.chat.completions.runTools(
      { ...ask, messages: aboutWeather, tools: [get_weather], stream: true },
      { maxChatCompletions: 2 },
    );
    await runner.done();
    assert.equal(asked[0], CITY);
    assert(runner.messages.some((message) => message.role === "tool" && message.content === RESULT));
  },

  async structured() {
    const response_format = zodResponseFormat(Person, "person");
    const whole = await client.chat.completions.parse({ ...ask, messages, response_format });
    Person.parse(whole.choices[0].message.parsed);
    const streamed = await client.chat.completions.stream({ ...ask, messages, response_format }).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.parsed, whole.choices[0].message.parsed);
  },

  async refused() {
    const hot = await refusal(
      client.chat.completions.create({ model: "demo", messages, temperature: -1 }), OpenAI.BadRequestError,
    );
    assert.equal(hot.param, "temperature");
    assert(hot.requestID);
    const other = await refusal(
      client.chat.completions.create({ model: UNKNOWN_MODEL, messages }), OpenAI.NotFoundError,
    );
    assert.match(other.message, new RegExp(UNKNOWN_MODEL));
  },

  async responses_whole_and_streamed() {
    const whole = await client.responses.create({ ...ask, input: QUESTION });
    assert.match(whole.output_text, HEARD);
    const stream = client.responses.stream({ ...ask, input: QUESTION });
    let text = "";
    stream.on("response.output_text.delta", (event) => (text += event.delta));
    const streamed = await stream.finalResponse();
    assert.equal(text, whole.output_text);
    assert.equal(streamed.output_text, text);
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  },

  async responses_tools() {
    const tools = [zodResponsesFunction({ name: "get_weather", parameters: Weather })];
    const whole = await client.responses.parse({ ...ask, input: ABOUT_WEATHER, tools, tool_choice: "required" });
    const [call] = whole.output;
    assert.deepEqual(call.parsed_arguments, { city: CITY });
    const result = { type: "function_call_output", call_id: call.call_id, output: RESULT };
    const kept = await client.responses.create(
      { ...ask, input: [result], previous_response_id: whole.id, tools, tool_choice: "none" },
    );
    assert(kept.output_text);
    // The same without the server's memory: all items are sent back, with what the client added to them.
    const input = [...aboutWeather, ...whole.output, result];
    const itself = await client.responses.create({ ...ask, input, store: false, tools, tool_choice: "none" });
    assert.equal(itself.output_text, kept.output_text);
  },

  async responses_structured() {
    const text = { format: zodTextFormat(Person, "person") };
    Person.parse((await client.responses.parse({ ...ask, input: QUESTION, text })).output_parsed);
  },
});
