// What is known of the cache at one moment. Wire objects are never changed, so copies are cheap.

export class Tree {
  constructor() {
    this.nodes = new Map();
    this.requests = new Map();
    this.totals = {};
    this.path = []; // what stands above the watched node
    this.watched = undefined; // id of the node whose subtree this is; undefined: all
    this.version = 0;
    this.uses = 0;
  }

  copy() {
    const other = Object.assign(new Tree(), this);
    other.nodes = new Map(this.nodes);
    other.requests = new Map(this.requests);
    return other;
  }

  /** Take one event of the stream in; other names change nothing. */
  apply(name, data) {
    if (name === "snapshot") this.#snapshot(data);
    else if (name === "tree") this.#change(data);
    else if (name === "requests") this.#progress(data);
    else if (name === "stats") this.#count(data);
  }

  #snapshot(data) {
    this.nodes = new Map(data.nodes.map((node) => [node.id, node]));
    this.requests = new Map(data.requests.map((request) => [request.id, request]));
    this.path = data.path;
    this.#moment(data);
  }

  #change(data) {
    for (const id of data.removed) this.nodes.delete(id);
    for (const node of data.nodes) this.nodes.set(node.id, node);
    this.#moment(data);
  }

  #moment({ version, uses, totals }) {
    this.version = version;
    this.uses = uses;
    this.totals = { ...this.totals, ...totals };
  }

  #progress(data) {
    for (const { type, id } of data.events) {
      if (type === "retracted" || type === "finished") this.requests.delete(id);
    }
    for (const request of data.running) this.requests.set(request.id, request);
    this.totals = { ...this.totals, running: this.requests.size, waiting: data.waiting };
  }

  #count(data) {
    const named = ["capacity", "free", "private", "locked", "evictable", "pinned", "host", "host_capacity", "disk", "disk_capacity", "running", "waiting"];
    this.totals = { ...this.totals };
    for (const name of named) this.totals[name] = data[name];
  }

  /** The part of it that hangs at a node, which stays part of it; all, when that is not known. */
  below(id) {
    if (id === this.watched || !this.nodes.has(id)) return this;
    const part = Object.assign(new Tree(), this, { watched: id, nodes: new Map() });
    part.path = [...this.path, ...[...this.upwards(id)].slice(1).reverse()];
    const kids = new Map([...this.nodes.keys()].map((node) => [node, []]));
    for (const node of this.nodes.values()) kids.get(node.parent_id)?.push(node);
    for (const next = [this.nodes.get(id)]; next.length;) {
      const node = next.pop();
      part.nodes.set(node.id, node);
      next.push(...kids.get(node.id));
    }
    return part;
  }

  /** The nodes that are cached, and what leads to them. Of ghosts the one that is watched, and those that stay. */
  cached(stays) {
    const kept = new Map();
    for (const node of this.nodes.values()) {
      const wanted = node.state === "ghost" ? node.id === this.watched || stays(node) : node.tokens || node.hidden;
      if (!wanted) continue;
      for (const above of this.upwards(node.id)) {
        if (kept.has(above.id)) break;
        kept.set(above.id, above);
      }
    }
    return kept;
  }

  /** From a node up to the top of what is shown. */
  *upwards(id) {
    for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent_id)) yield node;
  }

  /** The nodes with the most tokens of their own. */
  heaviest(count) {
    const found = [...this.nodes.values()].filter((node) => node.tokens);
    return found.sort((a, b) => b.tokens - a.tokens || a.id - b.id).slice(0, count);
  }
}
