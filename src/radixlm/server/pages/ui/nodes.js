// What is told of single nodes: where the pointer is, the one that is selected, the heaviest.

import { getJson } from "./api.js";
import { ofReplica } from "./replicas.js";
import { byId, count, counted, element, manyLines, oneLine } from "./text.js";

const HEAVIEST = 20;
const TIP_GAP = 14;

function facts(node, tree) {
  const ghosts = node.tokens - Math.max(node.resident, node.on_host, node.on_disk);
  const told = [
    ["State", node.state],
    ["Tokens", ghosts ? `${count(node.tokens)}, ${count(ghosts)} of them ghosts` : count(node.tokens)],
    ["In the prompt", `${count(node.start)} to ${count(node.start + node.tokens)}`],
    ["Lock count", node.pins ? `${node.lock_ref}, pins: ${node.pins}` : node.lock_ref],
    ["Hits", count(node.hits)],
    ["Last used", node.last_used === tree.uses ? "just now" : `${counted(tree.uses - node.last_used, "use")} ago`],
    ["Slots", slots(node.slots)],
  ];
  const gone = (node.tombstones ?? []).reduce((sum, [first, end]) => sum + end - first, 0);
  if (gone) told.push(["Tombstone", `${counted(gone, "token")}, evicted in layers with a window`]);
  if (node.checkpoint_bytes) told.push(["Checkpoint", `a state at its end, ${count(node.checkpoint_bytes)} bytes`]);
  if (node.on_host) told.push(["In host memory", counted(node.on_host, "token")]);
  if (node.on_disk) told.push(["On disk", counted(node.on_disk, "token")]);
  if (node.hidden) told.push(["Not shown", `${counted(node.hidden, "node")}, ${counted(node.hidden_tokens, "token")}`]);
  return told.flatMap(([name, value]) => [element("dt", name), element("dd", String(value))]);
}

function slots(runs) {
  if (!runs.length) return "none";
  const told = runs.slice(0, 4).map(([first, end]) => (end - first > 1 ? `${first}–${end - 1}` : `${first}`));
  return told.join(", ") + (runs.length > 4 ? ", …" : "");
}

/** Beside the pointer; without a node it goes. */
export function showTip(bar, tree, x, y) {
  const tip = byId("tip");
  tip.hidden = !bar;
  if (!bar) return;
  if (bar.node) {
    const list = element("dl");
    list.append(...facts(bar.node, tree));
    tip.replaceChildren(element("pre", oneLine(bar.node.text ?? "") + (bar.node.cut ? "…" : "")), list);
  } else tip.replaceChildren(element("p", `${counted(bar.hidden, "node")} below left out here: open the one above`));
  const room = tip.parentElement;
  const left = x + TIP_GAP + tip.offsetWidth > room.clientWidth ? x - TIP_GAP - tip.offsetWidth : x + TIP_GAP;
  const top = Math.min(y + TIP_GAP, room.clientHeight - tip.offsetHeight - 4);
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

/** The panel of one node, with all of its text. */
export async function showNode(node, tree) {
  const panel = byId("node");
  panel.hidden = !node;
  if (!node) return;
  panel.dataset.id = node.id;
  followNode(tree);
  byId("node-text").textContent = manyLines(node.text ?? "") + (node.cut ? "…" : "");
  try {
    const whole = await getJson(ofReplica(`cache/node/${node.id}`));
    if (panel.dataset.id === String(node.id)) {
      byId("node-text").textContent = manyLines(whole.text ?? "") + (whole.cut ? "…" : "");
    }
  } catch {
    // It is gone, or belongs to the past: what is known of it is shown.
  }
}

/** The panel's facts, as a tree has them now. */
export function followNode(tree) {
  const panel = byId("node");
  if (panel.hidden) return;
  const id = Number(panel.dataset.id);
  byId("node-open").disabled = id === tree.watched;
  const node = tree.nodes.get(id);
  const told = node ? facts(node, tree) : [element("dt", "State"), element("dd", "not in what is shown")];
  const list = byId("node-facts");
  const texts = (elements) => [...elements].map((part) => part.textContent).join();
  if (texts(told) !== texts(list.children)) list.replaceChildren(...told); // else a selection in it stays
}

/** To those who hear the page. */
export function sayNode({ text, tokens, state, hits }) {
  byId("chosen").textContent = `${counted(tokens, "token")}, ${state}, ${counted(hits, "hit")}: ${oneLine(text ?? "")}`;
}

/** The tree for those who do not see it. */
export function showTable(tree, chosen) {
  const rows = tree.heaviest(HEAVIEST).map((node) => {
    const row = element("tr");
    const name = element("button", oneLine((node.text ?? "").slice(0, 80)) || `node ${node.id}`, { type: "button" });
    name.addEventListener("click", () => chosen(node.id));
    const first = element("td");
    first.append(name);
    row.append(first, ...[count(node.tokens), count(node.hits), node.state].map((text) => element("td", text)));
    return row;
  });
  const body = byId("table").tBodies[0];
  if (!body.contains(document.activeElement)) body.replaceChildren(...rows);
}

/** Where the tree that is shown hangs. */
export function showPath(tree, open) {
  const crumbs = [crumb("All", () => open(undefined), tree.watched === undefined)];
  for (const node of tree.path) {
    if (node.tokens) crumbs.push(crumb(oneLine(node.text || `node ${node.id}`), () => open(node.id), false));
  }
  const here = tree.nodes.get(tree.watched);
  if (here?.tokens) crumbs.push(crumb(oneLine(here.text || `node ${here.id}`), () => {}, true));
  byId("path").replaceChildren(...crumbs);
}

function crumb(text, go, here) {
  const made = element("button", text.slice(0, 60), { type: "button", ...(here ? { "aria-current": "page", disabled: "" } : {}) });
  made.addEventListener("click", go);
  return made;
}
