// Rows of the scenario form: add one from the section's template, take one away.
// Without scripts the same button asks the server for another row, and a box marks rows to remove.
(() => {
  "use strict";
  document.addEventListener("click", (event) => {
    const add = event.target.closest("[data-rows-add]");
    const remove = event.target.closest("[data-rows-remove]");
    if (add) {
      event.preventDefault();
      const section = add.closest("[data-rows]");
      const total = section.querySelector("[name$='-TOTAL_FORMS']");
      const row = section.querySelector("[data-rows-template]").content.querySelector("tr").cloneNode(true);
      const html = row.innerHTML.replaceAll("__prefix__", total.value);
      row.innerHTML = html;
      section.querySelector("[data-rows-body]").append(row);
      total.value = Number(total.value) + 1;
      row.querySelector("input:not([type=hidden]), select").focus();
    } else if (remove) {
      const row = remove.closest("[data-row]");
      row.querySelector("[name$='-DELETE']").checked = true;
      row.classList.add("d-none");
    } else {
      return;
    }
    (add || remove).dispatchEvent(new Event("input", { bubbles: true }));
  });
  // What is chosen goes into a list that is typed; without scripts it is typed alone.
  document.addEventListener("change", (event) => {
    const chosen = event.target.closest("[data-adds]");
    if (!chosen || !chosen.value) {
      return;
    }
    const list = document.getElementById(chosen.dataset.adds);
    const listed = list.value.split(",").map((part) => part.trim()).filter(Boolean);
    list.value = [...new Set([...listed, chosen.value])].join(", ");
    chosen.value = "";
    list.dispatchEvent(new Event("input", { bubbles: true }));
  });
})();
