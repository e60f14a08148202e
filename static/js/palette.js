// The search over all pages and names, by Ctrl-K or by [data-palette]; without scripts a page has it.
(() => {
  "use strict";
  const palette = document.getElementById("palette");
  if (!palette) return;
  const field = palette.querySelector("input");
  const links = () => [...palette.querySelectorAll("#palette-found a")];

  const open = () => {
    if (palette.open) return;
    palette.showModal();
    field.select();
    htmx.trigger(field, "open");
  };

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]")) {
      event.preventDefault();
      open();
    } else if (event.target === palette) {
      palette.close();
    }
  });
  palette.addEventListener("keydown", (event) => {
    const all = links();
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (to === undefined || !all.length) return;
    event.preventDefault();
    (to < 0 ? field : all[Math.min(to, all.length - 1)]).focus();
  });
  // Enter in the field goes to the first that was found.
  palette.querySelector("form").addEventListener("submit", (event) => {
    const [first] = links();
    if (!first) return;
    event.preventDefault();
    first.click();
  });
})();
