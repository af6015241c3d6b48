// The `ollama` package of npm: models, a chat, a stream, embeddings, and what is refused.
// Read by node from standard input, so that its import is found where it is started.
import { Ollama } from "ollama";

const [host, key, model, asked] = process.argv.slice(2);
const { system, questions, schema } = JSON.parse(asked);
const client = new Ollama({ host, headers: { Authorization: `Bearer ${key}` } });
const check = (holds, what) => {
  if (!holds) throw new Error(what);
};
check((await client.list()).models.some((each) => each.model === model), "it is not listed");
check((await client.show({ model })).details, "it is not shown");
const messages = [{ role: "system", content: system }, { role: "user", content: questions[0] }];
const told = { model, messages, options: { temperature: 0, num_predict: 40 } };
const answer = await client.chat(told);
let text = "";
let pieces = 0;
for await (const part of await client.chat({ ...told, stream: true })) {
  text += part.message.content;
  pieces += 1;
}
check(text === answer.message.content && pieces > 3, `${pieces} pieces: ${text}`);
const made = await client.chat({ ...told, format: schema });
check(["Paris", "Oslo"].includes(JSON.parse(made.message.content).city), made.message.content);
const found = await client.embed({ model, input: questions });
check(found.embeddings.length === questions.length, "embeddings are missing");
const refusal = await client.pull({ model: "llama3" }).catch((error) => error);
check(refusal instanceof Error, "pulling was not refused");
