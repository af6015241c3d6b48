// Draws the bars. Ten thousand a frame: what is thinner than a pixel is drawn once for each column.

import { palette } from "./palette.js";
import { count, oneLine } from "./text.js";

const LEAST_LABEL_WIDTH = 34;
const LEAST_LABEL_HEIGHT = 12;
const LINE = 15;
const PAD = 6;
const EDGE = 3; // pixels of a bar's left edge, for what is on disk too
const TOMBSTONE = 4; // of a bar's width 1 / this, at its right, for what window layers do not have
const FONT_SIZE = 11;
// Those that take two places in a font of even widths: of East Asia, and pictures.
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const labels = new WeakMap(); // node -> its text on one line

let hatch;
let glyph = 6.6;

/** After the palette or the density changed. */
export function prepare(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = palette().hatch;
  pen.beginPath();
  pen.moveTo(-1, 7);
  pen.lineTo(7, -1);
  pen.stroke();
  hatch = context.createPattern(tile, "repeat");
  context.font = `${FONT_SIZE}px ${palette().mono}`;
  glyph = context.measureText("0123456789").width / 10;
}

export function paintBars({ context, width, height }, scene, shade) {
  context.clearRect(0, 0, width, height);
  context.font = `${FONT_SIZE}px ${palette().mono}`;
  context.textRendering = "optimizeSpeed"; // without ligatures, as in the style sheet
  context.textBaseline = "top";
  context.direction = "ltr";
  const columns = []; // by depth, the pixel column drawn last
  const place = {};
  for (const bar of scene.bars) {
    scene.rectangle(bar, place);
    if (place.height <= 0 || place.y > height || place.y + place.height < 0) continue;
    if (place.width < 1) {
      const column = Math.floor(place.x);
      if (columns[bar.depth] === column) continue;
      columns[bar.depth] = column;
      place.x = column;
      place.width = 1;
    }
    if (bar.node) paintBar(context, bar, place, shade);
    else paintHidden(context, bar, place);
  }
  for (const bar of scene.leaving) paintLeaving(context, bar, scene.rectangle(bar));
}

function paintBar(context, bar, place, shade) {
  const { node } = bar;
  const { fill, label } = shade(node);
  const { x, y } = place;
  const gap = place.width > 4 ? 1 : 0;
  const low = place.height > 4 ? 1 : 0;
  const width = place.width - gap;
  const height = place.height - low;
  if (!node.tokens) return paintNamespace(context, node, place);
  context.fillStyle = fill;
  context.fillRect(x, y, width, height);
  const near = Math.max(node.resident, node.on_host);
  const kept = Math.max(near, node.on_disk);
  if (node.resident < near) paintPart(context, palette().host, node, node.resident, near, { x, y, width, height });
  if (near < kept) paintPart(context, palette().disk, node, near, kept, { x, y, width, height });
  if (kept < node.tokens && height > 3) paintGhost(context, node, kept, { x, y, width, height });
  for (const [first, end] of node.tombstones ?? []) {
    const side = width / TOMBSTONE;
    paintPart(context, palette().tombstone, node, first, end, { x: x + width - side, y, width: side, height });
  }
  if (node.checkpoint_bytes && height > 2 * EDGE) {
    context.fillStyle = palette().checkpoint;
    context.fillRect(x, y + height - EDGE, width, EDGE);
  }
  const both = Math.min(near, node.on_disk);
  if (both && width > 2 * EDGE) paintPart(context, palette()["on-disk"], node, 0, both, { x, y, width: EDGE, height });
  if (bar.flash > 0) {
    context.globalAlpha = bar.flash * 0.8;
    context.fillStyle = palette().gone;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
  }
  if (width >= LEAST_LABEL_WIDTH && height >= LEAST_LABEL_HEIGHT) paintLabel(context, node, place, label);
  return undefined;
}

/** Some of a node's tokens. */
function paintPart(context, style, node, first, end, { x, y, width, height }) {
  const unit = height / node.tokens;
  context.fillStyle = style;
  context.fillRect(x, y + first * unit, width, (end - first) * unit);
}

/** The part without keys and values anywhere. */
function paintGhost(context, node, kept, place) {
  paintPart(context, palette().ghost, node, kept, node.tokens, place);
  if (place.width >= 3) paintPart(context, hatch, node, kept, node.tokens, place);
}

function paintNamespace(context, node, { x, y, width, height }) {
  if (height < LEAST_LABEL_HEIGHT || width < LEAST_LABEL_WIDTH) return;
  context.fillStyle = palette().quiet;
  context.fillText(cut(namespaceOf(node), (width - 4) / glyph), x + 2, y + height / 2 - 6);
}

export function namespaceOf(node) {
  const named = Object.entries(node.namespace ?? {}).filter(([, value]) => value);
  return named.length ? oneLine(named.map((pair) => pair.join(" ")).join(" · ")) : "no namespace";
}

function paintLabel(context, node, { x, y, width, height }, colour) {
  const top = Math.max(y, 0);
  const lines = Math.min(4, Math.floor((y + height - top - 2) / LINE));
  if (lines < 1) return;
  context.fillStyle = colour;
  const wide = Math.floor((width - 2 * PAD) / glyph);
  const first = top + Math.max(1, Math.min(5, (height - LINE) / 2));
  const size = count(node.tokens);
  const beside = wide > size.length + 14 ? size.length + 2 : 0;
  if (beside) context.fillText(size, x + width - PAD - size.length * glyph - 1, first);
  const text = labelOf(node);
  let from = 0;
  for (let line = 0; line < lines && from < text.length; line += 1) {
    const room = line ? wide : wide - beside;
    let end = lineEnd(text, from, room);
    const more = line === lines - 1 && end < text.length;
    if (more) end = lineEnd(text, from, room - 1);
    context.fillText(text.slice(from, end) + (more ? "…" : ""), x + PAD, first + line * LINE);
    from = end;
  }
}

/** Where a line ends that has room for so many glyphs: behind a word, if it is not too long. */
function lineEnd(text, from, room) {
  let end = from;
  let word = from;
  let taken = 0;
  for (const character of text.slice(from, from + room + 1)) {
    taken += character >= "\u1100" && WIDE.test(character) ? 2 : 1;
    if (taken > room) return word > (from + end) / 2 ? word : end;
    end += character.length;
    if (character === " ") word = end;
  }
  return end;
}

function labelOf(node) {
  let text = labels.get(node);
  if (text === undefined) {
    text = oneLine(node.text ?? "") + (node.cut ? "…" : "");
    labels.set(node, text);
  }
  return text;
}

function cut(text, room) {
  const most = Math.max(0, Math.floor(room));
  return text.length <= most ? text : `${text.slice(0, Math.max(0, most - 1))}…`;
}

function paintHidden(context, bar, { x, y, width, height }) {
  context.fillStyle = hatch;
  context.fillRect(x, y, Math.max(width - 1, 1), height);
  if (width < 60 || height < LEAST_LABEL_HEIGHT) return;
  context.fillStyle = palette().quiet;
  context.fillText(cut(`+ ${count(bar.hidden)} more`, width / glyph - 1), x + PAD, y + height / 2 - 6);
}

function paintLeaving(context, bar, { x, y, width, height }) {
  context.globalAlpha = Math.max(0, bar.left) * 0.85;
  context.fillStyle = palette().gone;
  context.fillRect(x, y, Math.max(width - 1, 1), Math.max(1, height * bar.left));
  context.globalAlpha = 1;
}

/** A frame around a bar: what is pointed at, selected or found. */
export function paintFrame(context, { x, y, width, height }, colour, thickness) {
  context.strokeStyle = colour;
  context.lineWidth = thickness;
  context.strokeRect(x + thickness / 2, y + thickness / 2, Math.max(width - thickness, 2), Math.max(height - thickness, 2));
}
