// Light, dark or the system's choice; loaded in the head so that the page is painted right at once.
(() => {
  "use strict";
  const KEY = "headroom-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  const choice = () => {
    try {
      return localStorage.getItem(KEY) || "auto";
    } catch {
      return "auto"; // storage is switched off
    }
  };

  const apply = () => {
    const wanted = choice();
    const dark = wanted === "dark" || (wanted === "auto" && system.matches);
    root.setAttribute("data-bs-theme", dark ? "dark" : "light");
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      const chosen = button.dataset.themeChoice === wanted;
      button.classList.toggle("active", chosen);
      button.setAttribute("aria-pressed", String(chosen));
    }
  };

  root.classList.add("scripted");
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (!button) return;
    try {
      localStorage.setItem(KEY, button.dataset.themeChoice);
    } catch {
      // not kept beyond this page
    }
    apply();
  });
})();
