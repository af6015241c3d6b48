// Whether what is evicted, but remembered, has bars: a full pool has more of it than of what is cached.

const STORED = "radixlm-ghosts";

export function setUpGhosts(box, changed) {
  box.checked = localStorage.getItem(STORED) === "shown";
  box.addEventListener("change", () => {
    localStorage.setItem(STORED, box.checked ? "shown" : "hidden");
    changed();
  });
  changed();
}
