// Server-sent events over fetch: EventSource could not send the key.

import { ask } from "./api.js";

const MOST_BUFFERED = 64 * 2 ** 20;
const WAITS = [500, 1000, 2000, 4000, 8000];

/**
 * Follow a stream until the returned function is called.
 * handlers: event(name, data); state("connecting" | "live" | "lost"); refused(error), which ends it.
 */
export function follow(path, handlers) {
  const control = new AbortController();
  run(path, handlers, control.signal);
  return () => control.abort();
}

async function run(path, handlers, signal) {
  for (let failures = 0; !signal.aborted; failures += 1) {
    handlers.state(failures ? "lost" : "connecting");
    try {
      const answer = await ask(path, { signal });
      handlers.state("live");
      failures = 0;
      await read(answer.body.getReader(), handlers.event);
    } catch (error) {
      if (signal.aborted) return;
      if (error.refused || error.status === 404) {
        handlers.refused(error);
        return;
      }
    }
    await pause(WAITS[Math.min(failures, WAITS.length - 1)], signal);
  }
}

async function read(reader, event) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    if (rest.length > MOST_BUFFERED) throw new Error("an event is too long");
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) told(block, event);
  }
}

function told(block, event) {
  let name = "message";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data += line.slice(5);
  }
  if (data) event(name, JSON.parse(data));
}

function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}
