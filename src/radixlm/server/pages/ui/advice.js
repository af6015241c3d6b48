// What the server says about the misses of the last minutes, and what another pool would hold.

import { getJson } from "./api.js";
import { byId, count, element, oneLine, percent } from "./text.js";

const MOST = 5;

/** Whether the server gives advice at all. */
export async function showAdvice() {
  let told;
  try {
    told = await getJson("cache/advice");
  } catch {
    byId("advice").hidden = true;
    return false;
  }
  byId("advice").hidden = !told.advice.length && !told.capacity.length;
  byId("advice-list").replaceChildren(...told.advice.slice(0, MOST).map((entry) => element("li", oneLine(entry.text))));
  showCurve(told.capacity);
  return true;
}

function showCurve(sizes) {
  const table = byId("curve");
  table.hidden = !sizes.length;
  const heads = sizes.map(({ scale, tokens }) => element("th", `${scale}×`, { scope: "col", title: `${count(tokens)} tokens` }));
  const rates = sizes.map(({ hit_rate: rate }) => element("td", percent(rate)));
  table.tHead.replaceChildren(rowOf(heads));
  table.tBodies[0].replaceChildren(rowOf(rates));
}

function rowOf(cells) {
  const row = element("tr");
  row.append(...cells);
  return row;
}
