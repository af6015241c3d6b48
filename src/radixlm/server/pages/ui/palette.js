// The colours of the style sheet, for the canvases.

const NAMES = [
  "cached", "running", "pinned", "host", "disk", "on-disk", "tombstone", "checkpoint", "ghost", "gone", "hatch", "label", "quiet", "edge", "dot", "dot-ring",
  "accent", "low", "line", "ink", "surface", "used", "evicted", "run", "wait", "mark", "mono", "sans",
];
export const STEPS = 12;
const EVEN = 0.179; // the luminance on which black and white are read as well
export const STATES = [
  ["running", "running", "a request uses it"],
  ["cached", "cached", "may be evicted, leaves first"],
  ["pinned", "pinned", "kept on purpose"],
  ["host", "in host memory", "evicted, can be copied back"],
  ["disk", "on disk", "evicted, can be read back"],
  ["on-disk", "on disk too", "can be read back, once evicted"],
  ["tombstone", "tombstone", "evicted in layers with a window alone"],
  ["checkpoint", "checkpoint", "a recurrent state is kept at its end"],
  ["ghost", "ghost", "evicted, remembered"],
];

let colours = {};

export function readPalette() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  colours.ramp = ramp(...["least", "most"].map((name) => style.getPropertyValue(`--${name}`).trim()));
}

export function palette() {
  return colours;
}

/** Shades from one to another, each with the colour of labels that is read best on it. */
function ramp(low, high) {
  const [from, to] = [low, high].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: STEPS }, (_, step) => {
    const mixed = from.map((value, part) => Math.round(value + ((to[part] - value) * step) / (STEPS - 1)));
    return { fill: `rgb(${mixed.join(" ")})`, label: luminance(mixed) > EVEN ? "#000" : "#fff" };
  });
}

/** Of sRGB, as WCAG defines it. */
function luminance(rgb) {
  const [red, green, blue] = rgb.map((value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Fits a canvas to its place on a screen of this density; the 2d context in CSS pixels. */
export function fitted(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const density = Math.min(window.devicePixelRatio || 1, 2);
  if (canvas.width !== Math.round(width * density) || canvas.height !== Math.round(height * density)) {
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
  }
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  return { context, width, height };
}
