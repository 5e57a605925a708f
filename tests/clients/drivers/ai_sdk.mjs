// What the Vercel AI SDK makes of answers, with both of its providers for such backends.
//
// call: "<provider>.<function>", e.g. "compatible.streamText"

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamObject, streamText, tool } from "ai";
import { z } from "zod";

import { failure, serve } from "./jobs.mjs";

const FOUND = z.object({ answer: z.string() });

globalThis.AI_SDK_LOG_WARNINGS = false;

// What a provider has no option for is written into the body on its way.
const adding = (job) => (url, init) => {
  const { chat_template_kwargs } = job.body;
  return fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), chat_template_kwargs }) });
};

const PROVIDERS = {
  compatible: (job) =>
    createOpenAICompatible({
      name: "mend",
      baseURL: job.base_url,
      apiKey: "none",
      includeUsage: true,
      supportsStructuredOutputs: true,
    }),
  openai: (job) => createOpenAI({ baseURL: job.base_url, apiKey: "none", fetch: adding(job) }),
};

function modelOf(job) {
  const provider = PROVIDERS[job.call.split(".")[0]](job);
  if (job.path === "completions")
    return provider.completionModel ? provider.completionModel(job.body.model) : provider.completion(job.body.model);
  return provider.chatModel ? provider.chatModel(job.body.model) : provider.chat(job.body.model);
}

function settingsOf(job) {
  const { body } = job;
  const { logprobs, top_logprobs, chat_template_kwargs } = body;
  const tools = {};
  for (const { function: about } of body.tools ?? [])
    tools[about.name] = tool({ description: about.description, inputSchema: jsonSchema(about.parameters) });
  return {
    model: modelOf(job),
    ...(body.messages ? { messages: body.messages } : { prompt: body.prompt }),
    ...(body.tools && { tools }),
    seed: body.seed,
    temperature: body.temperature,
    topP: body.top_p,
    maxRetries: 0,
    maxOutputTokens: body.max_tokens,
    abortSignal: AbortSignal.timeout(20_000),
    providerOptions: {
      mend: { chat_template_kwargs, ...(logprobs && { logprobs, top_logprobs }) },
      openai: logprobs ? { logprobs: top_logprobs ?? logprobs } : {},
    },
  };
}

const told = async (result) => ({
  text: await result.text,
  reasoning: (await result.reasoningText) ?? null,
  tool_calls: (await result.toolCalls).map(({ toolName, input }) => ({ toolName, input })),
  finish_reason: await result.finishReason,
  usage: await result.usage,
  metadata: (await result.providerMetadata) ?? null,
});

const text = async (job) => ({ answer: await told(await generateText(settingsOf(job))) });

async function streamed(job) {
  const result = streamText({ ...settingsOf(job), onError: () => {} });
  const kinds = new Set();
  let fault = null;
  let said = "";
  for await (const part of result.fullStream) {
    kinds.add(part.type);
    if (part.type === "text-delta") said += part.text;
    if (part.type === "error") fault ??= part.error;
  }
  if (fault) return { error: failure(fault), partial: said };
  return { answer: await told(result), events: [...kinds].sort() };
}

const seen = ({ object, finishReason, usage }) => ({ object, finish_reason: finishReason, usage });

const object = async (job) => ({ answer: seen(await generateObject({ ...settingsOf(job), schema: FOUND })) });

async function streamedObject(job) {
  let fault = null;
  const result = streamObject({ ...settingsOf(job), schema: FOUND, onError: ({ error }) => (fault ??= error) });
  const partials = [];
  for await (const partial of result.partialObjectStream) partials.push(partial);
  if (fault) {
    result.object.catch(() => {});
    return { error: failure(fault), partial: partials.at(-1) ?? null };
  }
  const [object_, finishReason, usage] = await Promise.all([result.object, result.finishReason, result.usage]);
  return { answer: seen({ object: object_, finishReason, usage }) };
}

const calls = {};
for (const provider of Object.keys(PROVIDERS)) {
  calls[`${provider}.generateText`] = text;
  calls[`${provider}.streamText`] = streamed;
  calls[`${provider}.generateObject`] = object;
  calls[`${provider}.streamObject`] = streamedObject;
}
await serve(calls);
