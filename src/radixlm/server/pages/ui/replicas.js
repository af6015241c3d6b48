// Several engines behind one address: a table of them, and whose tree is shown.

import { getJson } from "./api.js";
import { showPrefixes } from "./prefixes.js";
import { byId, counted, element, percent, replaceRows } from "./text.js";

const EVERY_MS = 2000;

let chosen;

/** A path below /cache of the replica that is shown. */
export function ofReplica(path) {
  if (!chosen) return path;
  return `${path}${path.includes("?") ? "&" : "?"}replica=${encodeURIComponent(chosen)}`;
}

/** changed(): another replica was chosen. */
export async function setUpReplicas(changed) {
  let opened = false;
  const open = () => {
    opened = true;
    changed();
  };
  const show = async () => {
    const { replicas } = await getJson("router/replicas");
    replicas.sort((one, other) => one.replica.localeCompare(other.replica));
    if (!replicas.some(({ replica }) => replica === chosen)) {
      const before = chosen;
      chosen = replicas[0]?.replica;
      if (!opened || chosen !== before) open();
    }
    replaceRows(byId("replica-rows"), replicas.map((each) => row(each, choose)));
    byId("replicas").hidden = false;
    showPrefixes(replicas.map(({ replica }) => replica), choose);
  };
  const choose = (name) => {
    chosen = name;
    changed();
    show().catch(() => {});
  };
  try {
    await show();
  } catch (error) {
    if (!opened) open();
    if (error.status === 403) return; // of all replicas admins alone may know
  }
  setInterval(() => show().catch(() => {}), EVERY_MS); // the stream says when the server is gone
}

function row(each, choose) {
  const line = element("tr");
  const name = element("th", "", { scope: "row" });
  const pressed = String(each.replica === chosen);
  const button = element("button", each.replica, { type: "button", "aria-pressed": pressed });
  button.addEventListener("click", () => choose(each.replica));
  name.append(button);
  line.append(
    name,
    element("td", each.cached_tokens.toLocaleString("en"), { title: `of ${each.capacity_tokens.toLocaleString("en")}` }),
    element("td", percent(each.hit_rate)),
    element("td", each.is_healthy ? String(each.requests) : `silent for ${Math.round(each.silent_seconds)} s`, {
      title: `${counted(Math.round(each.queue_tokens), "token")} to compute`,
    }),
  );
  return line;
}
