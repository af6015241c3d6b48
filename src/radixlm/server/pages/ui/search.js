// Finds the node of a text.

import { getJson } from "./api.js";
import { ofReplica } from "./replicas.js";
import { byId, element, oneLine } from "./text.js";

const QUIET_MS = 250;

/** chosen(node id): when a match was picked. */
export function setUpSearch(chosen) {
  const [form, field, list] = [byId("search"), byId("query"), byId("found")];
  let timer;
  let control = new AbortController();

  const close = () => {
    list.hidden = true;
  };
  const pick = (id) => {
    close();
    chosen(id);
  };
  const find = async () => {
    control.abort();
    control = new AbortController();
    const text = field.value;
    if (!text.trim()) return close();
    try {
      const found = await getJson(ofReplica(`cache/search?q=${encodeURIComponent(text)}`), control.signal);
      list.replaceChildren(...found.matches.map((match) => result(match, pick)));
      if (!found.matches.length) list.append(element("p", "Nothing in the cache holds this text."));
      else if (!found.complete) list.append(element("p", "There may be more."));
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      list.replaceChildren(element("p", error.message));
    }
    list.hidden = false;
    return undefined;
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, QUIET_MS);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    await find();
    list.querySelector("button")?.focus();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") walk(list, event);
  });
  document.addEventListener("click", (event) => {
    if (!form.contains(event.target)) close();
  });
}

function result(match, pick) {
  const item = element("li");
  const button = element("button", "", { type: "button" });
  button.append(oneLine(match.before), element("mark", oneLine(match.match)), oneLine(match.after));
  button.addEventListener("click", () => pick(match.node_id));
  item.append(button);
  return item;
}

function walk(list, event) {
  const all = [...list.querySelectorAll("button")];
  const next = all.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
  all[Math.max(0, Math.min(next, all.length - 1))]?.focus();
  event.preventDefault();
}
