// Why the prompts of sample loads missed: what the server's cache_report says, the newest on top.

import { byId, count, element, oneLine } from "./text.js";

const MOST = 12;
const NOTHING_LOST = new Set(["last_token", "held_back"]);

/** title: of the load that asked. */
export function showMiss(report, title) {
  if (NOTHING_LOST.has(report.reason)) return;
  const item = element("li", "", { "data-reason": report.reason });
  const head = element("p");
  const kind = element("span", report.reason, { class: "reason", "data-kind": report.reason });
  const sizes = `${count(report.computed_tokens)} of ${count(report.prompt_tokens)} tokens computed`;
  head.append(kind, element("span", `${title} · ${sizes}`, { class: "quiet" }));
  item.append(head, element("p", oneLine(report.text)));
  if (report.divergence?.context) item.append(difference(report.divergence));
  if (report.advice) item.append(element("p", `→ ${oneLine(report.advice)}`));
  const list = byId("miss-list");
  list.prepend(item);
  while (list.children.length > MOST) list.lastElementChild.remove();
  byId("misses").hidden = false;
}

/** What was cached, struck out, and what came instead. */
function difference({ context, cached, requested }) {
  const shown = element("pre");
  const differing = `[${cached}|${requested}]`;
  const at = context.indexOf(differing);
  if (at < 0) {
    shown.textContent = oneLine(context);
    return shown;
  }
  shown.append(
    element("span", oneLine(context.slice(0, at))), element("del", oneLine(cached)), " ", element("ins", oneLine(requested)),
    element("span", oneLine(context.slice(at + differing.length))),
  );
  return shown;
}
