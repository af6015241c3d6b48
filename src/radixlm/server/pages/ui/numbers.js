// The numbers on top: exact in `data-value`, short as text.

import { byId, count, counted, element, percent } from "./text.js";

const MINUTE_MS = 60_000;
// Of the pool, from what is in use to what is free. Pinned tokens are locked ones.
const PARTS = [
  ["running", "in use", ({ locked, pinned, private: own }) => locked - pinned + own],
  ["pinned", "pinned", ({ pinned }) => pinned],
  ["cached", "cached", ({ evictable }) => evictable],
];

let saved = 0;

/** Counts what the cache saved since the page was opened. */
export function countSaved(stats) {
  saved += stats.cached_tokens;
}

/** samples: of `stats`, up to the moment that is shown. */
export function showNumbers(tree, samples, now) {
  const { totals } = tree;
  if (totals.capacity === undefined) return;
  const minute = samples.filter(({ time }) => time > now - MINUTE_MS && time <= now);
  const sum = (name) => minute.reduce((all, sample) => all + sample[name], 0);
  const prompts = sum("prompt_tokens");
  const used = totals.capacity - totals.free;
  put("n-hit", prompts ? sum("cached_tokens") / prompts : "", prompts ? percent(sum("cached_tokens") / prompts) : "–");
  put("n-saved", saved, count(saved));
  put("n-pool", used, percent(totals.capacity ? used / totals.capacity : 0));
  byId("n-pool-of").textContent = `${count(used)} of ${count(totals.capacity)} tokens`;
  for (const place of ["host", "disk"]) {
    const room = totals[`${place}_capacity`];
    document.body.toggleAttribute(`data-${place}`, room > 0);
    put(`n-${place}`, totals[place], count(totals[place]));
    byId(`n-${place}-of`).textContent = `of ${counted(room, "token")}`;
  }
  put("n-nodes", totals.nodes, count(totals.nodes));
  byId("n-shown").textContent = shown(tree);
  put("n-running", totals.running, count(totals.running));
  byId("n-waiting").textContent = `running, ${count(totals.waiting)} waiting`;
  put("n-evicted", sum("evicted_tokens"), count(sum("evicted_tokens")));
  const rate = minute.at(-1)?.generated_tokens_per_s ?? 0;
  put("n-generated", rate, count(Math.round(rate)));
  showDrafts(minute);
  showPool(totals);
  document.body.dataset.version = tree.version;
}

/** By source, the drafted tokens that were right; each saved a step. */
function showDrafts(minute) {
  const sums = {};
  for (const [source, its] of minute.flatMap(({ drafts }) => Object.entries(drafts))) {
    const sum = (sums[source] ??= [0, 0]);
    sum[0] += its.accepted_tokens;
    sum[1] += its.drafted_tokens;
  }
  const sources = Object.entries(sums);
  const saved = sources.reduce((all, [, [right]]) => all + right, 0);
  document.body.toggleAttribute("data-drafts", sources.length > 0);
  put("n-drafts", saved, count(saved));
  byId("n-drafts-of").textContent = sources.map(([source, [right, of]]) => `${source} ${count(right)} of ${count(of)}`).join(", ");
}

function put(id, value, text) {
  const place = byId(id);
  place.dataset.value = value;
  if (place.textContent !== text) place.textContent = text;
}

function shown(tree) {
  const ghosts = tree.totals.ghosts ? `${counted(tree.totals.ghosts, "ghost token")}` : "no ghosts";
  return tree.nodes.size < tree.totals.nodes ? `${count(tree.nodes.size)} shown` : ghosts;
}

function showPool(totals) {
  const meter = byId("pool");
  const parts = PARTS.map(([state, name, size]) => ({ state, name, size: size(totals) }));
  meter.setAttribute("aria-label", parts.map(({ name, size }) => `${count(size)} ${name}`).join(", "));
  while (meter.children.length < parts.length) meter.append(element("i"));
  parts.forEach(({ state, name, size }, place) => {
    const bar = meter.children[place];
    bar.style.width = `${(100 * size) / totals.capacity}%`;
    bar.style.background = `var(--${state === "cached" ? "used" : state === "running" ? "run" : state})`;
    bar.title = `${count(size)} ${name}`;
  });
}

/** For those who hear the page: a sentence now and then. */
export function spoken(tree) {
  const { totals } = tree;
  const used = percent((totals.capacity - totals.free) / totals.capacity);
  return `${counted(totals.nodes, "node")}, pool ${used} used, ${totals.running} running, ${totals.waiting} waiting.`;
}
