// Texts of prompts as they may be shown: what would act, not show, is spelled out.

// Control characters, soft hyphens, zero widths, bidirectional marks, tags.
const SILENT = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;
const SHORT = { "\n": "↵", "\t": "⇥", "\r": "␍" };

function spelled(character) {
  return SHORT[character] ?? `‹U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
}

/** On one line. */
export function oneLine(text) {
  return text.replace(SILENT, spelled);
}

/** With its line ends. */
export function manyLines(text) {
  return text.replace(SILENT, (found) => (found === "\n" ? "↵\n" : spelled(found)));
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(number) {
  return Math.abs(number) < 100_000 ? whole.format(number) : short.format(number);
}

/** A number with its noun. */
export function counted(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

export function percent(share) {
  return share === null || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** An element with a text, which is never read as markup. */
export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Other rows in a table; who was at a button in it stays there. */
export function replaceRows(body, rows) {
  const own = body.contains(document.activeElement) ? document.activeElement.textContent : undefined;
  body.replaceChildren(...rows);
  if (own !== undefined) [...body.querySelectorAll("button")].find((each) => each.textContent === own)?.focus();
}

export function byId(id) {
  return document.getElementById(id);
}
