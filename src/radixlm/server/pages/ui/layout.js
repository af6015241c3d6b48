// Where each node's bar goes: x from 0 to 1 by how many prompts end below, y in units of height.

import "./vendor/d3-hierarchy.min.js";

const { hierarchy, partition } = globalThis.d3;
const MOST_PLACES = 100_000; // remembered, of nodes that are shown and others
const NAMESPACE_UNITS = 1.6; // a root has no tokens, and is a head line where there are several

export const HEIGHTS = {
  log: (tokens) => Math.log2(1 + tokens),
  linear: (tokens) => tokens,
};

/**
 * Keeps nodes in the order in which they were first seen; a new upper half takes its child's place.
 * What is out of sight for a while, in another subtree or moment, comes back where it stood.
 */
export class Order {
  #places = new Map();
  #next = 0;

  update(nodes) {
    const lent = new Map();
    for (const [id, node] of nodes) {
      const place = this.#places.get(id);
      if (place !== undefined) this.#lend(place, nodes.get(node.parent_id), nodes, lent);
    }
    if (this.#places.size > MOST_PLACES) this.#places = new Map([...this.#places].filter(([id]) => nodes.has(id)));
    for (const [id, place] of lent) this.#places.set(id, place);
    for (const id of nodes.keys()) {
      if (!this.#places.has(id)) this.#places.set(id, this.#next++);
    }
  }

  #lend(place, parent, nodes, lent) {
    for (let above = parent; above && !this.#places.has(above.id); above = nodes.get(above.parent_id)) {
      lent.set(above.id, Math.min(place, lent.get(above.id) ?? Infinity));
    }
  }

  of(id) {
    return this.#places.get(id);
  }
}

/**
 * The bars, parents first: {id, node, parent (a place in the list, -1 for none), depth, x0, x1, y0, y1}.
 * What the server left out below a node is a bar of its own, without `node` and with `hidden`.
 */
export function layout(nodes, order, heightOf) {
  const kids = new Map();
  const tops = [];
  for (const node of nodes.values()) kids.set(node.id, { node, order: order.of(node.id), kids: [] });
  for (const own of kids.values()) {
    const { node } = own;
    (kids.get(node.parent_id)?.kids ?? tops).push(own);
    if (node.hidden) own.kids.push({ hidden: node.hidden, below: node, order: Infinity, kids: [] });
  }
  const several = tops.length > 1;
  const root = hierarchy({ kids: tops }, (data) => data.kids)
    .sum((data) => (data.kids.length ? 0 : Math.log2(1 + (data.hidden ?? 1))))
    .sort((a, b) => a.data.order - b.data.order);
  partition()(root);
  const bars = [];
  root.eachBefore((place) => place.depth && bars.push(bar(place, several, heightOf, bars.length)));
  return bars;
}

function bar(place, several, heightOf, index) {
  const { data, parent } = place;
  const { node } = data;
  place.index = index;
  const top = parent.bottom ?? 0;
  const units = node ? (node.tokens ? heightOf(node.tokens) : several ? NAMESPACE_UNITS : 0) : 2;
  place.bottom = top + units;
  return {
    id: node ? node.id : -1 - data.below.id,
    node,
    hidden: data.hidden,
    below: data.below,
    parent: parent.index ?? -1,
    depth: place.depth,
    x0: place.x0,
    x1: place.x1,
    y0: top,
    y1: place.bottom,
  };
}
