// What a bar's colour says: its state, how long ago it was used, or how often.

import { palette, STEPS } from "./palette.js";

/** A function from node to {fill, label}. */
export function shading(kind, tree) {
  if (kind === "age") return ramped((node) => 1 - logShare(tree.uses - node.last_used, tree.uses));
  if (kind === "hits") {
    let most = 1;
    for (const node of tree.nodes.values()) most = Math.max(most, node.tokens ? node.hits : 0);
    return ramped((node) => logShare(node.hits, most));
  }
  const colours = palette();
  return (node) => ({ fill: colours[node.state] ?? colours.cached, label: node.state === "ghost" ? colours.quiet : colours.label });
}

function ramped(share) {
  const { ramp, quiet, ...fills } = palette();
  return (node) => {
    if (!node.resident && node.tokens) return { fill: fills[node.state], label: quiet };
    return ramp[Math.round(Math.min(1, Math.max(0, share(node))) * (STEPS - 1))];
  };
}

function logShare(value, most) {
  return Math.log1p(Math.max(0, value)) / Math.log1p(Math.max(1, most));
}
