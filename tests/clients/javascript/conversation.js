// What every client asks of the demo model, and how its conversation is told to the test that runs it.
import assert from "node:assert/strict";
import { z } from "zod";

export const V1 = `${process.argv[2]}/v1`;
export const KEY = "none"; // clients insist on one
export const QUESTION = "What is Pelton?";
export const HEARD = /server for large language models/; // what the demo model answers to it, greedily
export const ABOUT_WEATHER = "What is the weather in Paris?";
export const CITY = "Paris";
export const RESULT = "17 degrees and rain";
export const UNKNOWN_MODEL = "no-such-model";

export const Weather = z.object({ city: z.string().max(12) });
export const Person = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(99) });

/** Runs the parts of a conversation and names each that went well: the test wants all of them named. */
export async function hold(parts) {
  for (const [name, part] of Object.entries(parts)) {
    await part();
    console.log(`ok: ${name}`);
  }
}

/** The error that a promise ends with, which must be of a kind. */
export async function refusal(promise, kind) {
  const error = await promise.then(() => assert.fail("it was taken"), (error) => error);
  assert(error instanceof kind, error);
  return error;
}
