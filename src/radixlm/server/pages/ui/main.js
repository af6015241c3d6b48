// The page: one stream, the tree it tells of, and everything that shows it.

import { getJson } from "./api.js";
import { showAdvice } from "./advice.js";
import { pass } from "./gate.js";
import { setUpGhosts } from "./ghosts.js";
import { History } from "./history.js";
import { agoAt, paintLanes } from "./lanes.js";
import { setUpLegend } from "./legend.js";
import { setUpLoads } from "./loads.js";
import { showMiss } from "./misses.js";
import { followNode, sayNode, showNode, showPath, showTable, showTip } from "./nodes.js";
import { countSaved, showNumbers, spoken } from "./numbers.js";
import { ofReplica, setUpReplicas } from "./replicas.js";
import { setUpSearch } from "./search.js";
import { follow } from "./stream.js";
import { byId } from "./text.js";
import { setUpTheme } from "./theme.js";
import { Tree } from "./tree.js";
import { View } from "./view.js";

const MOST_NODES = 10_000;
const TREE_MS = 100; // between layouts: they cost what all nodes cost
const TABLE_MS = 1000;
const SPOKEN_MS = 15_000;
const ADVICE_MS = 5000;

const live = new Tree();
const history = new History();
const page = {
  shown: live, // the live tree, or one of the past
  at: undefined, // the moment that is looked at, when it is not now
  watched: undefined, // the node whose subtree is followed
  within: undefined, // in the past: the node whose subtree is shown
  wanted: undefined, // the node to select as soon as it is there
  stop: () => {},
  news: new Set(), // names of events since it was drawn
  timer: undefined,
  shownAt: 0,
};

const view = new View(byId("canvas"), {
  pointed: (bar, x, y) => showTip(bar, page.shown, x, y),
  selected: (node) => {
    showNode(node, page.shown);
    sayNode(node);
  },
  opened: open,
  up: () => open(page.shown.path.filter((node) => node.tokens).at(-1)?.id),
});

/** Follow the subtree of a node; all of the tree for undefined. */
function open(id) {
  uncover(page.shown.nodes.get(id));
  if (page.at !== undefined) {
    page.within = id;
    look(page.at);
    return;
  }
  if (id !== undefined && id === page.watched) return;
  page.watched = id;
  const above = live.path.findIndex((node) => node.id === id);
  live.path = above < 0 ? live.path : live.path.slice(0, above); // up again works before the answer is here
  page.stop();
  const node = id === undefined ? "" : `&node=${id}`;
  page.stop = follow(ofReplica(`cache/events?max_nodes=${MOST_NODES}${node}`), { event: take, state: showLink, refused });
}

/** Another tree: its ids mean other nodes. */
function startAnew() {
  look(undefined);
  choose(undefined);
  page.watched = undefined;
  history.clear();
  open(undefined);
}

function refused(error) {
  if (error.status === 404 && page.watched !== undefined) {
    open(undefined); // the node that was followed is gone
    return;
  }
  showLink("lost");
  if (error.refused) window.location.reload();
}

/** One event of the stream. */
function take(name, data) {
  if (name === "error") return;
  if (name === "snapshot") {
    if (data.version < live.version) choose(undefined); // another server's: its ids mean other nodes
    live.watched = page.watched;
  }
  live.apply(name, data);
  history.record(Date.now(), name, data, live);
  if (name === "stats") countSaved(data);
  if (page.at === undefined) showSoon(name);
}

/** Events come faster than layouts are worth: what came is shown together. */
function showSoon(name) {
  page.news.add(name);
  if (page.timer !== undefined) return;
  const wait = name === "snapshot" ? 0 : Math.max(0, page.shownAt + TREE_MS - performance.now());
  page.timer = setTimeout(() => {
    page.timer = undefined;
    page.shownAt = performance.now();
    const news = page.news;
    page.news = new Set();
    if (page.at === undefined) showLive(news);
  }, wait);
}

function showLive(news) {
  page.shown = live;
  if (news.has("snapshot")) showPath(live, open);
  if (news.has("snapshot") || news.has("tree")) view.show(live, { flash: !news.has("snapshot") });
  else if (news.has("requests")) view.move(live);
  if (page.wanted !== undefined && live.nodes.has(page.wanted)) reach(page.wanted);
  showRest();
}

function showRest() {
  const now = page.at ?? Date.now();
  const { watched, nodes, totals } = page.shown;
  const told = totals.capacity !== undefined;
  const ghosts = byId("ghosts").checked;
  const barred = (node) => node.tokens && (ghosts || node.state !== "ghost");
  byId("empty").hidden = !told || watched !== undefined || [...nodes.values()].some(barred);
  showNumbers(page.shown, history.samples, now);
  paintLanes(byId("lanes"), history.samples, Date.now(), page.at);
}

function showLink(state) {
  const link = byId("link");
  link.dataset.state = state;
  document.body.dataset.link = state;
  link.textContent = { connecting: "connecting", live: "live", lost: "connection lost, trying again" }[state];
}

/** Look at a moment of the past; undefined is now. */
function look(at) {
  if (page.at === undefined) page.within = page.watched;
  page.at = at === undefined ? undefined : Math.max(at, history.since);
  const paused = page.at !== undefined;
  const ago = paused ? Math.round((Date.now() - page.at) / 1000) : 0;
  page.shown = paused ? history.at(page.at).below(page.within) : live;
  byId("pause").setAttribute("aria-pressed", paused);
  byId("pause").textContent = paused ? "Live" : "Pause";
  byId("when").value = -ago;
  byId("past").hidden = !paused;
  byId("past").textContent = ago ? `${ago} s ago` : "paused";
  byId("when").ariaValueText = paused ? byId("past").textContent : "now";
  view.show(page.shown, { flash: false });
  showPath(page.shown, open);
  showTable(page.shown, reach);
  followNode(page.shown);
  showRest();
  if (!paused && page.within !== page.watched) open(page.within);
}

function togglePause() {
  look(page.at === undefined ? Date.now() : undefined);
}

function stepTime(seconds) {
  const at = (page.at ?? Date.now()) + 1000 * seconds;
  look(at >= Date.now() ? undefined : at);
}

/** Select a node; one that is not shown is opened first. */
function reach(id) {
  page.wanted = undefined;
  if (page.shown.nodes.has(id)) {
    uncover(page.shown.nodes.get(id));
    choose(page.shown.nodes.get(id));
  } else if (page.at !== undefined) {
    look(undefined); // what is looked for stands in the tree of now
    reach(id);
  } else {
    page.wanted = id;
    open(id);
  }
}

/** A ghost that is asked for is shown, also while ghosts are not. */
function uncover(node) {
  if (node?.state !== "ghost" || byId("ghosts").checked) return;
  byId("ghosts").checked = true;
  showGhosts();
}

function showGhosts() {
  view.showGhosts(byId("ghosts").checked);
  showRest();
}

function choose(node) {
  view.select(node?.id);
  showNode(node, page.shown);
}

function setUpTime() {
  byId("pause").addEventListener("click", togglePause);
  byId("back").addEventListener("click", () => stepTime(-1));
  byId("on").addEventListener("click", () => stepTime(1));
  byId("when").addEventListener("input", () => {
    const seconds = Number(byId("when").value);
    look(seconds === 0 ? undefined : Date.now() + 1000 * seconds);
  });
  byId("lanes").addEventListener("click", (event) => {
    const ago = agoAt(byId("lanes"), event.offsetX);
    look(ago < 1000 ? undefined : Date.now() - ago);
  });
}

function setUpChoices() {
  byId("colour").addEventListener("change", ({ target }) => {
    view.colourBy(target.value);
    setUpLegend(target.value);
  });
  byId("height").addEventListener("change", ({ target }) => view.measure(target.value));
  setUpGhosts(byId("ghosts"), showGhosts);
  byId("node-open").addEventListener("click", () => open(Number(byId("node").dataset.id)));
  byId("node-close").addEventListener("click", () => choose(undefined));
  byId("help").addEventListener("click", () => byId("guide").showModal());
}

function setUpKeys() {
  const keys = {
    "/": () => byId("query").focus(),
    " ": togglePause,
    ",": () => stepTime(-1),
    ".": () => stepTime(1),
    g: () => byId("ghosts").click(),
    t: () => byId("theme").click(),
    "?": () => byId("guide").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]), select, dialog")
      || (event.key === " " && event.target.closest("button, input"));
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
}

/** What costs little and changes slowly. */
function setUpRounds() {
  setInterval(() => {
    if (page.at !== undefined) return;
    showTable(live, reach);
    followNode(live);
  }, TABLE_MS);
  setInterval(() => {
    if (live.totals.capacity) byId("summary").textContent = spoken(page.shown);
  }, SPOKEN_MS);
}

async function start() {
  setUpTheme(byId("theme"), () => {
    view.recolour();
    showRest();
  });
  setUpTime();
  setUpChoices();
  setUpKeys();
  setUpLegend("state");
  setUpSearch((id) => {
    reach(id);
    byId("canvas").focus(); // the list that was chosen from is gone
  });
  await pass();
  const { served_model_name: name, routed } = await getJson("get_model_info");
  if (routed) await setUpReplicas(startAnew);
  else open(undefined);
  setUpRounds();
  byId("model").textContent = name;
  const explains = await showAdvice();
  if (explains) setInterval(showAdvice, ADVICE_MS);
  await setUpLoads(explains, showMiss);
}

start().catch((error) => {
  showLink("lost");
  byId("link").textContent = error.message;
});
