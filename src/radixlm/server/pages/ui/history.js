// The last minutes, to step back through: whole trees now and then, and the events between them.

import { Tree } from "./tree.js";

export const MINUTES = 5;
const KEEP_MS = MINUTES * 60_000;
const WHOLE_EVERY_MS = 10_000;
const MOST_EVENTS = 6000;
const MOST_NODES = 600_000; // in whole trees and changes together

export class History {
  #events = []; // {time, name, data, weight}
  #wholes = []; // {time, place (of the first event after it), tree, weight}
  #dropped = 0; // events that made room: places count from the first one ever
  #weight = 0;
  samples = []; // {time, ...stats}

  /** After `tree` took an event in. */
  record(time, name, data, tree) {
    if (name === "stats") this.samples.push({ time, ...data });
    const weight = 1 + (data.nodes?.length ?? 0);
    this.#events.push({ time, name, data, weight });
    this.#weight += weight;
    const last = this.#wholes.at(-1);
    if (name === "snapshot" || !last || time - last.time > WHOLE_EVERY_MS) this.#keepWhole(time, tree);
    this.#trim(time);
  }

  /** Forget all: what comes is of another tree. */
  clear() {
    [this.#events, this.#wholes, this.samples] = [[], [], []];
    this.#dropped = this.#weight = 0;
  }

  /** The first moment that is still known. */
  get since() {
    return this.#wholes[0]?.time ?? Infinity;
  }

  /** The tree as it was at a moment; the oldest that is known for one before it. */
  at(time) {
    const wholes = this.#wholes;
    if (!wholes.length) return new Tree();
    let place = wholes.length - 1;
    while (place > 0 && wholes[place].time > time) place -= 1;
    const tree = wholes[place].tree.copy();
    for (let next = wholes[place].place - this.#dropped; next < this.#events.length; next += 1) {
      const event = this.#events[next];
      if (event.time > time) break;
      tree.apply(event.name, event.data);
    }
    return tree;
  }

  #keepWhole(time, tree) {
    const weight = tree.nodes.size;
    this.#wholes.push({ time, place: this.#dropped + this.#events.length, tree: tree.copy(), weight });
    this.#weight += weight;
  }

  #trim(now) {
    const old = now - KEEP_MS;
    while (this.samples.length && this.samples[0].time < old) this.samples.shift();
    const full = () => this.#weight > MOST_NODES || this.#events.length > MOST_EVENTS;
    while (this.#wholes.length > 1 && (this.#wholes[1].time <= old || full())) this.#dropOldest();
  }

  /** The oldest whole tree goes, and the events that only it needs. */
  #dropOldest() {
    this.#weight -= this.#wholes.shift().weight;
    const gone = this.#events.splice(0, this.#wholes[0].place - this.#dropped);
    this.#dropped += gone.length;
    for (const event of gone) this.#weight -= event.weight;
  }
}
