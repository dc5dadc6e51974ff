// The Vercel AI SDK, over chats (`@ai-sdk/openai-compatible`) and over OpenAI's chats and responses (`@ai-sdk/openai`).
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, isStepCount, Output, streamText, tool } from "ai";
import {
  ABOUT_WEATHER, CITY, HEARD, hold, KEY, Person, QUESTION, refusal, RESULT, UNKNOWN_MODEL, V1, Weather,
} from "./conversation.js";

const compatible = createOpenAICompatible({
  name: "pelton", baseURL: V1, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: V1, apiKey: KEY });
const ways = { compatible: (model) => compatible(model), chat: (model) => openai.chat(model), responses: openai };
const ask = { temperature: 0, maxRetries: 0, maxOutputTokens: 200 };

await hold({
  async whole_and_streamed() {
    for (const [way, model] of Object.entries(ways)) {
      const whole = await generateText({ ...ask, model: model("demo"), prompt: QUESTION });
      assert.match(whole.text, HEARD, way);
      const stream = streamText({ ...ask, model: model("demo"), prompt: QUESTION });
      let text = "";
      for await (const delta of stream.textStream) text += delta;
      assert.equal(text, whole.text, way);
      assert.equal(await stream.finishReason, "stop", way);
      const [ours, theirs] = [whole.usage, await stream.usage];
      assert(ours.outputTokens > 0, way);
      assert.equal(theirs.outputTokens, ours.outputTokens, way);
      assert.equal(theirs.inputTokens, ours.inputTokens, way);
    }
  },

  async tools() {
    for (const [way, model] of Object.entries(ways)) {
      const asked = [];
      const get_weather = tool({
        description: "The weather in a city.",
        inputSchema: Weather,
        execute: ({ city }) => (asked.push(city), RESULT),
      });
      const turns = {
        ...ask,
        model: model("demo"),
        prompt: ABOUT_WEATHER,
        tools: { get_weather },
        stopWhen: isStepCount(2),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
      };
      const whole = await generateText(turns);
      assert.deepEqual(asked, [CITY], way);
      assert.equal(whole.steps.length, 2, way);
      assert.equal(whole.steps[0].finishReason, "tool-calls", way);
      assert(whole.text, way);
      const stream = streamText(turns);
      await stream.consumeStream();
      assert.deepEqual(asked, [CITY, CITY], way);
      assert.equal(await stream.text, whole.text, way);
    }
  },

  async structured() {
    for (const [way, model] of Object.entries(ways)) {
      const wish = { ...ask, model: model("demo"), prompt: QUESTION, output: Output.object({ schema: Person }) };
      const whole = await generateText(wish);
      Person.parse(whole.output);
      const stream = streamText(wish);
      let last;
      for await (const part of stream.partialOutputStream) last = part;
      assert.deepEqual(last, whole.output, way);
    }
  },

  async refused() {
    for (const model of Object.values(ways)) {
      const hot = await refusal(
        generateText({ ...ask, model: model("demo"), prompt: QUESTION, temperature: -1 }), APICallError,
      );
      assert.equal(hot.statusCode, 400);
      assert.match(hot.message, /temperature/);
      assert.equal(hot.isRetryable, false);
      const other = await refusal(generateText({ ...ask, model: model(UNKNOWN_MODEL), prompt: QUESTION }), APICallError);
      assert.equal(other.statusCode, 404);
      assert.match(other.message, new RegExp(UNKNOWN_MODEL));
    }
  },
});
