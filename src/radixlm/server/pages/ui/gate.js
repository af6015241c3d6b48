// Asks for the key, where the server wants one.

import { getJson, keepKey } from "./api.js";
import { byId } from "./text.js";

/** Returns once the server shows its cache to us. */
export async function pass() {
  let asked = false;
  for (;;) {
    try {
      return await getJson("cache/tree?max_nodes=1&text=false");
    } catch (error) {
      if (!error.refused) throw error;
      keepKey(await askForKey(asked || error.status === 403 ? error.message : ""));
      asked = true;
    }
  }
}

/** Shows why, and waits for another key. */
function askForKey(why) {
  const gate = byId("gate");
  byId("gate-why").textContent = why;
  gate.oncancel = (event) => event.preventDefault(); // there is nothing behind it
  if (!gate.open) gate.showModal();
  return new Promise((done) => {
    byId("gate-form").addEventListener("submit", (event) => {
      event.preventDefault();
      gate.close();
      done(byId("gate-key").value.trim());
    }, { once: true });
  });
}
