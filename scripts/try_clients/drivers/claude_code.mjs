// Claude Code by its SDK: a question, then two more turns of the same session, reading alone allowed.
// Read by node from standard input, so that its imports are found where it is started.
import { query } from "@anthropic-ai/claude-agent-sdk";

const [url, key, model, cwd, questions] = process.argv.slice(2);
const env = {
  ...process.env,
  ANTHROPIC_BASE_URL: url,
  ANTHROPIC_AUTH_TOKEN: key,
  ANTHROPIC_MODEL: model,
  ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
  ANTHROPIC_DEFAULT_SONNET_MODEL: model,
  ANTHROPIC_DEFAULT_OPUS_MODEL: model,
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
};
const preset = { type: "preset", preset: "claude_code" };
const options = {
  ...{ cwd, env, tools: preset, systemPrompt: preset, settingSources: [] },
  ...{ permissionMode: "dontAsk", allowedTools: ["Read", "Glob", "Grep"] },
};

let resume;
for (const prompt of JSON.parse(questions)) {
  for await (const message of query({ prompt, options: { ...options, resume } })) {
    resume = message.session_id ?? resume;
    if (message.type === "result" && message.is_error) throw new Error(message.result);
  }
}
