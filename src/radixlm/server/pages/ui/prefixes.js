// Which prefix lives where: a row for each of the heaviest, a bar for each replica.

import { getJson } from "./api.js";
import { byId, count, counted, element, oneLine, replaceRows } from "./text.js";

const MOST = 10;
const MOST_BARS = 8;

let asking = false;

/** names: of the replicas, in the order of their rows. choose(name): show this one's tree. */
export async function showPrefixes(names, choose) {
  if (asking) return; // a router that is away answers late
  asking = true;
  try {
    show(await getJson(`router/prefixes?limit=${MOST}`), names, choose);
  } catch {
    byId("prefixes").hidden = true;
  } finally {
    asking = false;
  }
}

function show({ prefixes, nodes, looked_at: looked }, names, choose) {
  const depths = [];
  const rows = prefixes.map((each, at) => {
    depths[at] = each.above === null ? 0 : depths[each.above] + 1;
    return row(each, depths[at], names, choose);
  });
  byId("prefixes").hidden = !rows.length;
  byId("prefixes-of").textContent = looked < nodes ? `of ${count(looked)} of ${counted(nodes, "node")}` : "";
  replaceRows(byId("prefix-rows"), rows);
}

function row(each, depth, names, choose) {
  const line = element("tr");
  const first = element("td");
  const [most] = Object.entries(each.cached_tokens).sort((one, other) => other[1] - one[1]);
  const own = depth ? "" : Object.values(each.namespace).filter(Boolean).map((part) => `${part} · `).join("");
  const text = oneLine(own + each.text) || counted(each.tokens, "token");
  const name = element("button", text, { type: "button", title: text + (each.cut ? "…" : "") });
  name.disabled = !most;
  name.addEventListener("click", () => choose(most[0]));
  name.style.setProperty("--depth", Math.min(depth, 6));
  first.append(name);
  line.append(first, element("td", count(each.tokens)), element("td", count(each.below_tokens)), where(each, names));
  return line;
}

function where(each, names) {
  const own = (name) => each.cached_tokens[name];
  const spoken = names.filter((name) => own(name) || each.coming.includes(name)).map((name) => {
    const parts = own(name) ? [counted(own(name), "token")] : [];
    if (each.coming.includes(name)) parts.push("being computed");
    return `${name}: ${parts.join(", ")}`;
  });
  const cell = element("td", "", { title: spoken.join("\n") });
  if (names.length > MOST_BARS) {
    const holders = Object.keys(each.cached_tokens).sort((one, other) => own(other) - own(one));
    cell.textContent = (holders[0] ?? "") + (holders.length > 1 ? ` +${holders.length - 1}` : "");
    cell.setAttribute("aria-label", spoken.join("; ") || "nowhere");
    return cell;
  }
  const bars = element("span", "", { class: "bars", role: "img", "aria-label": spoken.join("; ") || "nowhere" });
  bars.append(...names.map((name) => {
    const bar = element("i", "", { "data-coming": String(each.coming.includes(name)) });
    bar.style.setProperty("--share", own(name) ? own(name) / each.below_tokens : 0);
    return bar;
  }));
  cell.append(bars);
  return cell;
}
