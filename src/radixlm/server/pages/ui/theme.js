// Dark or light: as the system has it, until somebody says otherwise.

const STORED = "radixlm-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");

export function setUpTheme(button, changed) {
  const wanted = () => localStorage.getItem(STORED) ?? (dark.matches ? "dark" : "light");
  const put = () => {
    document.documentElement.dataset.theme = wanted();
    changed();
  };
  button.addEventListener("click", () => {
    localStorage.setItem(STORED, wanted() === "dark" ? "light" : "dark");
    put();
  });
  dark.addEventListener("change", put);
  put();
}
