// Why the prompts of sample loads missed: what the server's cache_report says, the newest on top.

import { byId, count, element, oneLine } from "./text.js";

const MOST = 12;
const NOTHING_LOST = new Set(["last_token", "held_back"]);

/** title: of the load that asked. Of misses that are alike the last one is shown. */
export function showMiss(report, title) {
  if (NOTHING_LOST.has(report.reason)) return;
  const alike = [title, report.cause, report.divergence?.message_index].join();
  const item = element("li", "", { "data-cause": report.cause, "data-alike": alike });
  const list = byId("miss-list");
  const before = list.firstElementChild;
  item.dataset.times = before?.dataset.alike === alike ? Number(before.dataset.times) + 1 : 1;
  if (item.dataset.times > 1) before.remove();
  item.append(head(report, title, item.dataset.times), element("p", sentence(report)));
  if (report.divergence?.context) item.append(difference(report.divergence));
  if (report.advice) item.append(element("p", `→ ${oneLine(report.advice)}`));
  list.prepend(item);
  while (list.children.length > MOST) list.lastElementChild.remove();
  byId("misses").hidden = false;
}

function head(report, title, times) {
  const made = element("p");
  const kind = element("span", report.reason, { class: "reason", "data-kind": report.reason });
  made.append(kind, element("span", times > 1 ? `${title}, ${count(times)} times` : title, { class: "quiet" }));
  return made;
}

/** Without the texts, which are shown below it. */
function sentence({ text, divergence }) {
  const shown = `: ${divergence?.context}`;
  return oneLine(text.endsWith(shown) ? text.slice(0, -shown.length) : text);
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
