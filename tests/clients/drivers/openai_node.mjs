// What the OpenAI SDK for Node makes of answers.

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { ChatCompletionStream } from "openai/lib/ChatCompletionStream";
import { z } from "zod";

import { serve } from "./jobs.mjs";

const FOUND = z.object({ answer: z.string() });
const WEATHER = z.object({ city: z.string() });

const clientOf = (job) => new OpenAI({ baseURL: job.base_url, apiKey: "none", maxRetries: 0, timeout: 20_000 });

const typed = (body) => ({
  ...body,
  ...(body.response_format && { response_format: zodResponseFormat(FOUND, "found") }),
  ...(body.tools && { tools: [zodFunction({ name: "get_weather", parameters: WEATHER })] }),
});

async function create(job) {
  const client = clientOf(job);
  const place = job.path === "completions" ? client.completions : client.chat.completions;
  const answer = await place.create({ ...job.body, stream: job.stream });
  if (!job.stream) return { answer };
  const chunks = [];
  for await (const chunk of answer) chunks.push(chunk);
  return { chunks };
}

async function accumulated(stream) {
  const events = new Set();
  for (const name of [
    "content",
    "content.delta",
    "content.done",
    "refusal.done",
    "tool_calls.function.arguments.delta",
    "tool_calls.function.arguments.done",
    "logprobs.content.delta",
    "logprobs.content.done",
    "finalContent",
    "finalMessage",
  ])
    stream.on(name, () => events.add(name));
  return { answer: await stream.finalChatCompletion(), events: [...events].sort() };
}

const stream = async (job) => accumulated(clientOf(job).chat.completions.stream(typed(job.body)));

// A server that hands its stream on to a browser: toReadableStream there, fromReadableStream here.
async function handed_on(job) {
  const body = typed(job.body);
  const first = clientOf(job).chat.completions.stream(body);
  return accumulated(ChatCompletionStream.fromReadableStream(first.toReadableStream()));
}

const parse = async (job) => ({ answer: await clientOf(job).chat.completions.parse(typed(job.body)) });

await serve({ create, handed_on, parse, stream });
