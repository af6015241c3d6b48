// What the colours mean.

import { STATES } from "./palette.js";
import { byId, element } from "./text.js";

const RAMPS = { age: ["long ago", "just used"], hits: ["no hit", "most hits"] };

export function setUpLegend(kind) {
  const items = kind === "state" ? STATES.map(([name, text, why]) => swatch(name, `${text}: ${why}`)) : [rampOf(kind), swatch("host", "in host memory"), swatch("disk", "on disk"), swatch("on-disk", "on disk too"), swatch("ghost", "ghost")];
  const dot = element("li");
  const mark = element("i", "", { class: "dot" });
  mark.style.background = "var(--dot)";
  dot.append(mark, "a running request");
  byId("legend").replaceChildren(...items, dot, swatch("gone", "just evicted"));
}

function swatch(name, text) {
  const item = element("li");
  const mark = element("i", "", { class: name });
  mark.style.background = `var(--${name})`;
  item.append(mark, text);
  return item;
}

function rampOf(kind) {
  const item = element("li");
  item.append(`${RAMPS[kind][0]} `, element("i", "", { class: "ramp" }), RAMPS[kind][1]);
  return item;
}
