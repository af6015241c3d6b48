// The tree's canvas: when it is drawn, and what the pointer and the keys do on it.

import { Dots } from "./dots.js";
import { paintBars, paintFrame, prepare } from "./paint.js";
import { fitted, palette, readPalette } from "./palette.js";
import { Scene } from "./scene.js";
import { shading } from "./shades.js";

const MOST_STEP_MS = 50; // a tab that was away goes on gently

export class View {
  #canvas;
  #scene = new Scene();
  #dots = new Dots();
  #tree;
  #colour = "state";
  #pointer = { x: -1, y: -1, moved: false };
  #pointed; // the bar there
  #selected; // id
  #last = 0;
  #waiting = false;
  #on;

  /** on: pointed(node, x, y), selected(node), opened(node id), up(). */
  constructor(canvas, on) {
    this.#canvas = canvas;
    this.#on = on;
    new ResizeObserver(() => this.#resized()).observe(canvas);
    this.recolour();
    this.#listen();
  }

  /** flash: whether nodes that went were evicted. */
  show(tree, { flash }) {
    this.#tree = tree;
    this.#scene.update(tree, flash);
    this.#dots.update(tree.requests);
    this.#canvas.dataset.bars = this.#scene.bars.length;
    this.#wake();
  }

  /** Who runs has changed, the tree has not. */
  move(tree) {
    this.#tree = tree;
    this.#dots.update(tree.requests);
    this.#wake();
  }

  colourBy(kind) {
    this.#colour = kind;
    this.#wake();
  }

  measure(height) {
    this.#scene.measure(height);
    if (this.#tree) this.show(this.#tree, { flash: false });
  }

  showGhosts(shown) {
    this.#scene.showGhosts(shown);
    if (this.#tree) this.show(this.#tree, { flash: false });
  }

  recolour() {
    readPalette();
    prepare(this.#canvas.getContext("2d"));
    this.#wake();
  }

  select(id) {
    this.#selected = id;
    this.#reveal(id);
    this.#wake();
  }

  #resized() {
    const { width, height } = fitted(this.#canvas);
    this.#scene.resize(width, height);
    prepare(this.#canvas.getContext("2d"));
    this.#draw(0);
  }

  #wake() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame((now) => {
      this.#waiting = false;
      this.#draw(Math.min(now - this.#last, MOST_STEP_MS));
      this.#last = now;
      if (this.#scene.moving || this.#dots.moving) this.#wake();
    });
  }

  #draw(ms) {
    if (!this.#tree) return;
    this.#scene.step(ms);
    if (this.#scene.stale) this.show(this.#tree, { flash: true });
    this.#dots.step(ms);
    this.#follow();
    const surface = fitted(this.#canvas);
    paintBars(surface, this.#scene, shading(this.#colour, this.#tree));
    this.#frame(surface.context, this.#pointed?.id, palette().ink, 1.5);
    this.#frame(surface.context, this.#selected, palette().mark, 2.5);
    this.#dots.paint(surface.context, this.#scene);
  }

  #frame(context, id, colour, thickness) {
    const bar = this.#scene.get(id);
    if (bar) paintFrame(context, this.#scene.rectangle(bar), colour, thickness);
  }

  #reveal(id) {
    const bar = this.#scene.get(id);
    if (!bar) return;
    const top = bar.to.y0 * this.#scene.unit;
    const height = this.#canvas.clientHeight;
    if (top < this.#scene.scroll || top > this.#scene.scroll + height - 30) this.#scene.scrollTo(top - height / 3);
  }

  #listen() {
    const canvas = this.#canvas;
    canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => this.#point(-1, -1));
    canvas.addEventListener("click", (event) => {
      const bar = this.#scene.at(event.offsetX, event.offsetY);
      const node = bar?.node ?? bar?.below;
      if (!node) return;
      this.#choose(node.id);
      this.#on.opened(node.id);
    });
    canvas.addEventListener("wheel", (event) => {
      const before = this.#scene.scroll;
      this.#scene.scrollTo(before + event.deltaY);
      if (this.#scene.scroll !== before) event.preventDefault();
      this.#wake();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #point(x, y) {
    this.#pointer = { x, y, moved: true };
    this.#wake();
  }

  /** The bars move below the pointer, too. */
  #follow() {
    const { x, y, moved } = this.#pointer;
    const bar = this.#scene.at(x, y);
    const same = bar?.id === this.#pointed?.id && bar?.node === this.#pointed?.node;
    if (same && !moved) return;
    this.#pointer.moved = false;
    this.#pointed = bar && { id: bar.id, node: bar.node };
    this.#on.pointed(bar, x, y);
  }

  #choose(id) {
    this.select(id);
    this.#on.selected(this.#tree.nodes.get(id));
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, ArrowLeft: -1, ArrowRight: 1 };
    if (event.key === "Enter" && this.#selected !== undefined) this.#on.opened(this.#selected);
    else if (event.key === "Escape" || event.key === "Backspace") this.#on.up();
    else if (event.key in steps) {
      const next = this.#neighbour(event.key, steps[event.key]);
      if (next) this.#choose(next.id);
    } else return;
    event.preventDefault();
  }

  #neighbour(key, step) {
    const bars = this.#scene.bars.filter((bar) => bar.node?.tokens);
    const here = this.#scene.get(this.#selected);
    if (!here) return bars[0];
    if (key === "ArrowUp") return here.above?.node?.tokens ? here.above : undefined;
    if (key === "ArrowDown") {
      const below = bars.filter((bar) => bar.above === here);
      return below.sort((a, b) => b.to.x1 - b.to.x0 - (a.to.x1 - a.to.x0))[0];
    }
    const beside = bars.filter((bar) => bar.above === here.above);
    return beside[beside.indexOf(here) + step];
  }
}
