// The buttons that fire sample loads, and what came of each.

import { getJson, postJson } from "./api.js";
import { LOADS } from "./sample_loads.js";
import { byId, counted, element, percent } from "./text.js";

const MOST_ROOM = 4000;

/** reported(report, load's title): each request's cache_report, where the server gives one. */
export async function setUpLoads(explains, reported) {
  const { max_model_len: longest, kv_tokens: pool } = await getJson("get_model_info");
  const room = Math.min(longest / 2, MOST_ROOM); // one character is one token at most
  byId("loads").replaceChildren(...LOADS.map((load) => row(load, load.told(room, pool), room, explains, reported)));
}

function row(load, words, room, explains, reported) {
  const item = element("li");
  const button = element("button", "Start", { type: "button", "data-load": load.name, "aria-label": `Start ${load.title}` });
  const told = element("p", words, { "aria-live": "polite" });
  item.append(element("b", load.title), button, told);
  let control;
  button.addEventListener("click", async () => {
    if (control) return control.abort();
    control = new AbortController();
    mark(button, load, true);
    const count = { done: 0, prompt: 0, cached: 0 };
    const answered = (usage, report) => {
      count.done += 1;
      count.prompt += usage.prompt;
      count.cached += usage.cached;
      tell(told, load, count);
      if (report) reported(report, load.title);
    };
    try {
      tell(told, load, count);
      await load.run(sender(control.signal, explains, answered), room);
      settle(told, "done");
    } catch (error) {
      const stopped = control.signal.aborted;
      control.abort(); // its other requests
      told.textContent = stopped ? `Stopped after ${counted(count.done, "request")}.` : error.message;
      settle(told, stopped ? "stopped" : "failed");
    }
    control = undefined;
    mark(button, load, false);
    return undefined;
  });
  return item;
}

function mark(button, load, running) {
  button.dataset.running = running;
  button.textContent = running ? "Stop" : "Start";
  button.setAttribute("aria-label", `${button.textContent} ${load.title}`);
}

function tell(place, load, { done, prompt, cached }) {
  place.className = "told";
  place.dataset.state = "running";
  place.setAttribute("aria-busy", true); // who hears the page hears the end, not each number
  place.textContent = `${done} of ${load.requests} requests${prompt ? ` · ${percent(cached / prompt)} of the prompts cached` : ""}`;
}

function settle(place, state) {
  place.dataset.state = state;
  place.setAttribute("aria-busy", false);
}

function sender(signal, explains, answered) {
  const more = explains ? { cache_report: true } : {};
  return {
    async chat(messages, tokens) {
      const answer = await postJson("v1/chat/completions", { messages, max_tokens: tokens, ...more }, signal);
      const { prompt_tokens: prompt, prompt_tokens_details: details } = answer.usage;
      answered({ prompt, cached: details.cached_tokens }, answer.cache_report);
      return answer.choices[0].message.content || "…";
    },
    async generate(text, tokens) {
      const answer = await postJson("generate", { text, sampling_params: { max_new_tokens: tokens }, ...more }, signal);
      const { prompt_tokens: prompt, cached_tokens: cached } = answer.meta_info;
      answered({ prompt, cached }, answer.meta_info.cache_report);
      return answer.text;
    },
  };
}
