// The bars as they are drawn: each moves from where it is to where the layout wants it.

import { HEIGHTS, layout, Order } from "./layout.js";

const MOVE_MS = 90; // time constant
const LEAVE_MS = 650;
const STILL = 2e-4;
const LEAST_LOG_UNIT = 3.4;
const MOST_LOG_UNIT = 28;
const LEAST_LINEAR_SHARE = 0.005;
/** Whether nothing is to move that need not. */
export const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

export class Scene {
  bars = []; // parents first
  leaving = [];
  unit = MOST_LOG_UNIT; // pixels of one unit of height
  scroll = 0;
  #byId = new Map();
  #order = new Order();
  #height = "log";
  #ghosts = true;
  #bottom = 1;
  #size = { width: 1, height: 1 };
  #still = true;
  stale = false; // whether a ghost that is to have no bar still has one: its red has faded

  get(id) {
    return this.#byId.get(id);
  }

  get moving() {
    return !this.#still || this.leaving.length > 0;
  }

  resize(width, height) {
    this.#size = { width, height };
    this.#still = false;
  }

  measure(height) {
    this.#height = height;
  }

  showGhosts(shown) {
    this.#ghosts = shown;
  }

  /** flash: whether what goes was evicted, not merely left out of sight. */
  update(tree, flash) {
    this.#order.update(tree.nodes);
    const targets = layout(this.#barred(tree, flash), this.#order, this.#heightOf());
    const before = this.#byId;
    this.#byId = new Map();
    this.#bottom = 1;
    for (const target of targets) {
      this.#bottom = Math.max(this.#bottom, target.y1);
      if (target.parent >= 0) targets[target.parent].firstKid ??= target.id;
    }
    this.bars = targets.map((target) => this.#place(target, before, targets, flash));
    for (const bar of this.bars) bar.above = this.bars[bar.parent];
    if (flash && !calm.matches) this.#letGo(before, tree.nodes);
    this.#still = false;
    this.stale = false;
  }

  /** The nodes that have bars. Where ghosts have none, they go when it was seen that they were evicted. */
  #barred(tree, flash) {
    if (this.#ghosts) return tree.nodes;
    return tree.cached(({ id }) => {
      const bar = this.#byId.get(id);
      return bar?.flash > 0 || (flash && bar?.node?.resident > 0);
    });
  }

  #heightOf() {
    return HEIGHTS[this.#height];
  }

  #place(target, before, targets, flash) {
    const old = before.get(target.id);
    const bar = old ?? this.#enter(target, before, targets);
    const wasThere = old?.node?.resident > 0;
    bar.flash = flash && wasThere && target.node.resident === 0 ? 1 : (old?.flash ?? 0);
    bar.node = target.node;
    bar.hidden = target.hidden;
    bar.below = target.below;
    bar.depth = target.depth;
    bar.parent = target.parent;
    bar.to = target;
    this.#byId.set(target.id, bar);
    return bar;
  }

  /** What is new grows out of its parent; the new upper half of a split lies where the whole was. */
  #enter(target, before, targets) {
    const whole = splitOf(target, before);
    if (whole) return { id: target.id, x0: whole.x0, x1: whole.x1, y0: whole.y0, y1: whole.y0 + target.y1 - target.y0 };
    const above = this.bars.length ? before.get(targets[target.parent]?.id) : undefined;
    const top = above ? above.y1 : target.y0;
    return { id: target.id, x0: target.x0, x1: target.x1, y0: top, y1: top };
  }

  #letGo(before, nodes) {
    for (const [id, bar] of before) {
      if (this.#byId.has(id) || !bar.node || !bar.node.resident || this.leaving.length > 2000) continue;
      const parent = nodes.get(bar.node.parent_id);
      const merged = parent && parent.start + parent.tokens > bar.node.start;
      if (!merged) this.leaving.push({ ...bar, left: 1 });
    }
  }

  /** Move on by some milliseconds. */
  step(ms) {
    const share = calm.matches ? 1 : 1 - Math.exp(-ms / MOVE_MS);
    let most = this.#scale(share);
    for (const bar of this.bars) {
      const lit = bar.flash > 0;
      most = Math.max(most, approach(bar, share, ms));
      this.stale ||= lit && !bar.flash && !this.#ghosts;
    }
    for (const bar of this.leaving) bar.left -= ms / LEAVE_MS;
    if (this.leaving.length) this.leaving = this.leaving.filter((bar) => bar.left > 0);
    this.#still = most < STILL;
  }

  #scale(share) {
    const fit = (this.#size.height * 0.97) / this.#bottom;
    const log = this.#height === "log";
    const wanted = log ? Math.min(Math.max(fit, LEAST_LOG_UNIT), MOST_LOG_UNIT) : fit;
    const difference = (wanted - this.unit) / wanted;
    this.unit = Math.abs(difference) < 1e-3 ? wanted : this.unit + (wanted - this.unit) * share;
    this.scrollTo(this.scroll);
    return Math.abs(difference);
  }

  scrollTo(pixels) {
    const most = this.#bottom * this.unit - this.#size.height;
    this.scroll = Math.max(0, Math.min(pixels, most + 12));
    if (most <= 0) this.scroll = 0;
  }

  /** In pixels of the canvas: {x, y, width, height}, put into `place`. */
  rectangle(bar, place = {}) {
    const { width } = this.#size;
    const least = this.#height === "linear" && bar.node?.tokens ? LEAST_LINEAR_SHARE * this.#size.height : 0;
    place.x = bar.x0 * width;
    place.y = bar.y0 * this.unit - this.scroll;
    place.width = (bar.x1 - bar.x0) * width;
    place.height = Math.max((bar.y1 - bar.y0) * this.unit, least);
    return place;
  }

  /** The bar at a place of the canvas. */
  at(x, y) {
    const share = x / this.#size.width;
    const units = (y + this.scroll) / this.unit;
    for (let index = this.bars.length - 1; index >= 0; index -= 1) {
      const bar = this.bars[index];
      if (bar.x0 <= share && share < bar.x1 && bar.y0 <= units && units < bar.y1) return bar;
    }
    return undefined;
  }

  /** How many pixels some tokens behind the end of a node take. */
  tail(tokens) {
    return Math.min(this.#heightOf()(tokens) * this.unit, 60);
  }
}

/** The node whose upper half a new one is: its first child now, which began where it begins. */
function splitOf(target, before) {
  const lower = before.get(target.firstKid);
  return lower?.node && target.node && lower.node.start === target.node.start ? lower : undefined;
}

function approach(bar, share, ms) {
  const { to } = bar;
  const most = Math.max(
    Math.abs(to.x0 - bar.x0), Math.abs(to.x1 - bar.x1), Math.abs(to.y0 - bar.y0) / 50, Math.abs(to.y1 - bar.y1) / 50,
  );
  const rate = most < STILL ? 1 : share;
  bar.x0 += (to.x0 - bar.x0) * rate;
  bar.x1 += (to.x1 - bar.x1) * rate;
  bar.y0 += (to.y0 - bar.y0) * rate;
  bar.y1 += (to.y1 - bar.y1) * rate;
  if (bar.flash > 0) bar.flash = Math.max(0, bar.flash - ms / LEAVE_MS);
  return bar.flash > 0 ? 1 : most;
}
