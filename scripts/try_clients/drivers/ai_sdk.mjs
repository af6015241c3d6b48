// Vercel's AI SDK: one conversation by each provider, answers sent back as the SDK gives them.
// Read by node from standard input, so that its imports are found where it is started.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const [url, apiKey, name, asked] = process.argv.slice(2);
const { system, questions, schema, weather } = JSON.parse(asked);
const baseURL = `${url}/v1`;
const models = {
  openai: createOpenAI({ baseURL, apiKey })(name),
  compatible: createOpenAICompatible({ name: "radixlm", baseURL, apiKey, includeUsage: true })(name),
  anthropic: createAnthropic({ baseURL, apiKey })(name),
};
const get_weather = tool({
  description: "The weather in a city.",
  inputSchema: jsonSchema(schema),
  strict: true,
  execute: async () => weather,
});

async function talk(model) {
  const messages = [];
  const cached = [];
  const ask = async (way, content, more) => {
    if (content) messages.push({ role: "user", content });
    const result = await way({ model, system, messages, maxOutputTokens: 40, maxRetries: 0, ...more });
    if (way === streamText) await result.consumeStream({ onError: (error) => { throw error; } });
    messages.push(...(await result.response).messages);
    cached.push((await result.usage).cachedInputTokens ?? 0);
  };
  for (const question of questions) await ask(generateText, question);
  const tools = { get_weather };
  await ask(generateText, "How is the weather in Paris?", { tools, toolChoice: "required" });
  await ask(generateText, null, { tools, toolChoice: "none" });
  await ask(streamText, "Thank you.");
  return cached;
}

for (const [provider, model] of Object.entries(models)) {
  const cached = await talk(model);
  if (cached.slice(1).some((count) => !(count > 0))) {
    throw new Error(`${provider}: cached tokens by turn: ${cached}`);
  }
}
