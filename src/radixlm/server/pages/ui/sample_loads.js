// The sample loads: what each sends. Bounded in requests, in tokens, and in how many run at once.

import { percent } from "./text.js";

const WORDS = ("amber basin cedar delta ember fjord grove harbor island jungle kettle lantern meadow nectar orchard pebble "
  + "quarry river saddle timber umbra valley willow xylem yarrow zephyr anchor bridge candle dagger engine feather").split(" ");
const RULES = [
  "Answer in one short sentence.", "Name the source of each fact.", "Never guess a number.", "Use the tool `search` for news.",
  "Use the tool `read_file` before you edit.", "Ask before you delete anything.", "Keep the user's units.", "Say when you are unsure.",
];
const TASKS = ["find the failing test", "rename a variable", "explain the stack trace", "write the release note", "sort the imports", "check the licence"];
const QUESTIONS = ["What is the capital of France?", "And of Spain?", "Which one is larger?", "What is 12 + 7?", "Tell me a short story."];
const IDEAS = ["First idea:", "Second idea:", "Third idea:"];

const RAW = 40;
const LETTERS_A_TOKEN = 6; // at most, of words such as these

/**
 * send: {chat(messages, tokens), generate(text, tokens)}, which reject when the load is stopped.
 * room: characters. told: what it does, in words; of a room and a pool in tokens.
 */
export const LOADS = [
  {
    name: "agents",
    title: "Agents",
    told: () => "Six agents under one long system prompt, four steps each.",
    requests: 24,
    run: (send, room) => inTurns(3, TASKS.map((task, place) => () => agent(send, room, task, place))),
  },
  {
    name: "raw",
    title: "Raw",
    told: rawTold,
    requests: RAW,
    run: (send, room) => inTurns(4, Array.from({ length: RAW }, () => () => send.generate(randomText(room * 0.5), 8))),
  },
  {
    name: "chat",
    title: "Chat",
    told: () => "Four people, five turns each: a history is computed once.",
    requests: 20,
    run: (send) => inTurns(4, ["Ada", "Ben", "Cleo", "Dan"].map((name) => () => chat(send, name))),
  },
  {
    name: "tree",
    title: "Tree of thought",
    told: () => "Three ideas, each continued three ways, and once more.",
    requests: 39,
    run: (send) => thoughts(send),
  },
  {
    name: "clock",
    title: "A clock in the prompt",
    told: () => "The time stands in front: nothing behind it is shared.",
    requests: 6,
    run: (send, room) => clock(send, room),
  },
];

function rawTold(room, pool) {
  const letters = RAW * room * 0.5;
  if (letters / LETTERS_A_TOKEN > pool) return "Prompts that share nothing. A full pool evicts leaves first.";
  const small = Math.floor(letters / LETTERS_A_TOKEN / 1000) * 1000;
  return `Prompts that share nothing, at most ${percent(letters / pool)} of this pool. With --kv-tokens ${small} they evict.`;
}

async function agent(send, room, task, place) {
  const messages = [{ role: "system", content: longPrompt(room) }, { role: "user", content: `Agent ${place + 1}: ${task}.` }];
  for (let step = 0; step < 4; step += 1) {
    messages.push({ role: "assistant", content: await send.chat(messages, 20) });
    messages.push({ role: "user", content: `Step ${step + 1} is done: ${sentence(9)}. Go on.` });
  }
}

async function chat(send, name) {
  const messages = [{ role: "system", content: "You are a helpful assistant." }];
  for (const question of QUESTIONS) {
    messages.push({ role: "user", content: messages.length === 1 ? `I am ${name}. ${question}` : question });
    messages.push({ role: "assistant", content: await send.chat(messages, 24) });
  }
}

async function thoughts(send) {
  let texts = ["Question: how do we cross the river with a wolf, a goat and a cabbage? Let us think of several ways.\n"];
  for (let level = 0; level < 3; level += 1) {
    const next = texts.flatMap((text) => IDEAS.map((idea) => `${text}${idea}`));
    texts = await inTurns(4, next.map((text) => async () => `${text}${await send.generate(text, 14)}\n`));
  }
}

async function clock(send, room) {
  for (let second = 10; second < 16; second += 1) {
    const content = `It is 14:07:${second}. ${longPrompt(room / 2)}`;
    await send.chat([{ role: "system", content }, { role: "user", content: QUESTIONS[0] }], 8);
  }
}

function longPrompt(room) {
  let text = "You are an agent that works on a repository. These rules hold:\n";
  for (let rule = 0; text.length < room - 60; rule += 1) text += `${rule + 1}. ${RULES[rule % RULES.length]}\n`;
  return text;
}

function randomText(length) {
  let text = "";
  while (text.length < length) text += `${sentence(1)} `;
  return text;
}

function sentence(words) {
  return Array.from({ length: words }, () => WORDS[Math.floor(Math.random() * WORDS.length)]).join(" ");
}

/** Run jobs, some at a time; their results in order. */
async function inTurns(atOnce, jobs) {
  const results = [];
  let next = 0;
  const work = async () => {
    while (next < jobs.length) {
      const place = next++;
      results[place] = await jobs[place]();
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, jobs.length) }, work));
  return results;
}
