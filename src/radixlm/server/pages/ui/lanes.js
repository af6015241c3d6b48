// The last minutes in four lanes: hit rate, pool use, evictions, requests.

import { MINUTES } from "./history.js";
import { fitted, palette } from "./palette.js";
import { count, percent } from "./text.js";

const SPAN_MS = MINUTES * 60_000;
const LEFT = 104; // room for the names
const FOOT = 12; // room for the minutes
const LEAST_MINUTE = 60; // pixels, for each minute to be named
const GAP_MS = 3000; // longer without a sample: nothing is known of it
const RIGHT = 8;

const LANES = [
  { name: "Hit rate", colour: "used", most: () => 1, parts: [(s) => s.hit_rate], said: (s) => percent(s.hit_rate), area: true },
  { name: "Pool", colour: "used", most: () => 1, parts: [(s) => 1 - s.free / s.capacity], said: (s) => percent(1 - s.free / s.capacity), area: true },
  { name: "Evicted/s", colour: "evicted", parts: [(s) => s.evicted_tokens / s.seconds], said: (s) => count(Math.round(s.evicted_tokens / s.seconds)), bars: true },
  { name: "Run · wait", colour: "run", second: "wait", parts: [(s) => s.running, (s) => s.waiting], said: (s) => `${s.running} · ${s.waiting}` },
];

/** at: the moment that is looked at, when it is not now. */
export function paintLanes(canvas, samples, now, at) {
  const { context, width, height } = fitted(canvas);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${palette().sans}`;
  context.textBaseline = "middle";
  const plot = { left: LEFT, width: width - LEFT - RIGHT, step: (height - FOOT) / LANES.length };
  const x = (time) => plot.left + plot.width * (1 - (now - time) / SPAN_MS);
  const seen = samples.filter(({ time }) => time <= (at ?? now)).at(-1);
  LANES.forEach((lane, place) => {
    const box = { top: place * plot.step + 3, height: plot.step - 6 };
    context.fillStyle = palette().quiet;
    context.fillText(lane.name, 0, box.top + box.height / 2);
    context.textAlign = "right";
    context.fillStyle = palette().ink;
    if (seen) context.fillText(lane.said(seen), LEFT - 8, box.top + box.height / 2);
    context.textAlign = "left";
    context.fillStyle = palette().line;
    context.fillRect(plot.left, box.top + box.height, plot.width, 1);
    paintLane(context, lane, box, samples, x);
  });
  paintMinutes(context, x, now, height);
  if (at === undefined) return;
  context.fillStyle = palette().accent;
  context.fillRect(x(at) - 1, 0, 2, height - FOOT);
}

function paintMinutes(context, x, now, height) {
  context.font = `10px ${palette().sans}`;
  const roomy = x(now) - x(now - 60_000) > LEAST_MINUTE;
  for (let ago = 0; ago <= MINUTES; ago += 1) {
    const place = x(now - ago * 60_000);
    context.fillStyle = palette().line;
    context.fillRect(place, 0, 1, height - FOOT);
    if (!roomy && ago % MINUTES) continue;
    context.fillStyle = palette().quiet;
    context.textAlign = { 0: "right", [MINUTES]: "left" }[ago] ?? "center";
    context.fillText(ago ? `${ago} min ago` : "now", place, height - FOOT / 2 + 1);
  }
  context.textAlign = "left";
}

function paintLane(context, lane, box, samples, x) {
  const values = lane.parts.flatMap((part) => samples.map(part));
  const most = lane.most?.() ?? Math.max(1, ...values.filter((value) => value !== null));
  const y = (value) => box.top + box.height * (1 - value / most);
  lane.parts.forEach((part, place) => {
    const colour = palette()[place ? lane.second : lane.colour];
    if (lane.bars) paintBars(context, colour, part, samples, x, y, box);
    else paintLine(context, colour, part, samples, x, y, lane.area ? box : undefined);
  });
}

function paintBars(context, colour, part, samples, x, y, box) {
  context.fillStyle = colour;
  for (const sample of samples) {
    const value = part(sample);
    if (value > 0) context.fillRect(x(sample.time) - 1.5, y(value), 3, box.top + box.height - y(value));
  }
}

function paintLine(context, colour, part, samples, x, y, under) {
  for (const run of runs(samples.filter((sample) => part(sample) !== null))) {
    paintRun(context, colour, run.map((sample) => [x(sample.time), y(part(sample))]), under);
  }
}

/** Samples without a gap between them: what nobody knows is not drawn. */
function runs(samples) {
  const found = [];
  let last = -Infinity;
  for (const sample of samples) {
    if (sample.time - last > GAP_MS) found.push([]);
    found.at(-1).push(sample);
    last = sample.time;
  }
  return found;
}

function paintRun(context, colour, points, under) {
  const [px, py] = points[0];
  if (points.length === 1) points.push([px + 1.5, py]);
  context.beginPath();
  points.forEach(([right, down], place) => (place ? context.lineTo(right, down) : context.moveTo(right, down)));
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.stroke();
  if (!under) return;
  context.lineTo(points.at(-1)[0], under.top + under.height);
  context.lineTo(px, under.top + under.height);
  context.globalAlpha = 0.16;
  context.fillStyle = colour;
  context.fill();
  context.globalAlpha = 1;
}

/** How many milliseconds ago a place of the canvas is; 0 beside the plot. */
export function agoAt(canvas, pixel) {
  const width = canvas.clientWidth - LEFT - RIGHT;
  const share = (pixel - LEFT) / width;
  return share < 0 || share > 1 ? 0 : SPAN_MS * (1 - share);
}
