// Running requests: a dot each, at the token that it has reached.

import { palette } from "./palette.js";
import { calm } from "./scene.js";

const MOVE_MS = 160;
const RADIUS = 4.5;

export class Dots {
  #dots = new Map(); // request id -> {token, x, goal, request}
  moving = false;

  /** Take over who runs. */
  update(requests) {
    const kept = new Map();
    for (const request of requests.values()) {
      const dot = this.#dots.get(request.id) ?? { token: 0, x: undefined };
      kept.set(request.id, Object.assign(dot, { request, goal: request.computed_tokens }));
    }
    this.#dots = kept;
    this.moving = kept.size > 0;
  }

  step(ms) {
    const share = calm.matches ? 1 : 1 - Math.exp(-ms / MOVE_MS);
    this.moving = false;
    for (const dot of this.#dots.values()) {
      const way = dot.goal - dot.token;
      dot.token = Math.abs(way) < 0.2 ? dot.goal : dot.token + way * share;
      dot.share = share;
      this.moving ||= dot.token !== dot.goal || dot.settling;
    }
  }

  paint(context, scene) {
    const beside = new Map(); // node id -> how many dots stand there
    for (const { request } of this.#dots.values()) beside.set(request.node_id, (beside.get(request.node_id) ?? 0) + 1);
    const before = new Map();
    for (const dot of this.#dots.values()) {
      const id = dot.request.node_id;
      const place = before.get(id) ?? 0;
      before.set(id, place + 1);
      const bar = scene.get(id);
      if (bar?.node) paintDot(context, scene, dot, bar, (place + 1) / (beside.get(id) + 1));
    }
  }
}

function paintDot(context, scene, dot, last, share) {
  const end = last.node.start + last.node.tokens;
  const within = dot.token <= end ? barAt(last, dot.token) : last;
  const place = scene.rectangle(within);
  const part = Math.min(1, Math.max(0, (dot.token - within.node.start) / Math.max(1, within.node.tokens)));
  const own = Math.max(0, dot.token - end);
  const foot = place.y + place.height * part;
  const y = foot + (own ? scene.tail(own) : 0);
  const wanted = place.x + place.width * share;
  dot.x = dot.x === undefined ? wanted : dot.x + (wanted - dot.x) * (dot.share ?? 1);
  dot.settling = Math.abs(wanted - dot.x) > 0.5;
  const { dot: colour, "dot-ring": ring } = palette();
  if (own) {
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(dot.x, foot);
    context.lineTo(dot.x, y);
    context.stroke();
  }
  context.beginPath();
  context.arc(dot.x, y, RADIUS, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.fill();
  context.lineWidth = 1.5;
  context.strokeStyle = ring;
  context.stroke();
}

/** The bar on the way to `last` that holds a token. */
function barAt(last, token) {
  let bar = last;
  while (bar.above?.node && token < bar.node.start) bar = bar.above;
  return bar;
}
