// Small habits of every page, by data attributes; no page has scripts of its own inside.
//   data-confirm="Sentence?"      ask before a form is sent
//   data-submit-on-change         send the form when this control changes
//   data-copy="#id"               copy that element's text
//   data-copy-table               copy the table next to this button as CSV; every list gets one
//   data-ticked="2"               a button that is disabled until so many choices of its form are ticked
//   data-filter="selector"        show only the elements that contain the text of this field
//   data-fits                     show controls of this form with data-for only for these choices
//   data-fills="id"               put data-now of the chosen option into that field
//   data-progress="id"            while this form's answer is awaited, that element asks how far it is
(() => {
  "use strict";
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm || event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });

  document.addEventListener("change", (event) => {
    const control = event.target.closest("[data-submit-on-change]");
    if (control) control.form.requestSubmit();
  });

  document.addEventListener("change", (event) => {
    const select = event.target.closest("[data-fills]");
    if (select) document.getElementById(select.dataset.fills).value = select.selectedOptions[0].dataset.now ?? "";
  });

  document.addEventListener("input", ({ target }) => {
    if (!target.dataset.filter) return;
    const text = target.value.trim().toLowerCase();
    for (const item of document.querySelectorAll(target.dataset.filter)) item.hidden = !item.textContent.toLowerCase().includes(text);
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    const form = event.target;
    const shown = form.dataset.progress && document.getElementById(form.dataset.progress);
    if (!shown) return;
    shown.hidden = false;
    const asking = setInterval(() => htmx.trigger(shown, "ask"), 1000);
    form.addEventListener("htmx:afterRequest", () => {
      clearInterval(asking);
      shown.hidden = true;
    }, { once: true });
  });

  // On a phone the answer of a form is below it.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id !== "answer" || !event.detail.requestConfig.elt.matches("form")) return;
    if (event.target.getBoundingClientRect().top > 0.7 * innerHeight) event.target.scrollIntoView();
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent.trim());
    button.textContent = "Copied";
  });

  const fit = (select) => {
    if (select.type === "radio" && !select.checked) return;
    for (const control of select.form.querySelectorAll("[data-for]")) {
      const shown = control.dataset.for.split(" ").includes(select.value);
      (control.matches("button") ? control : control.parentElement).hidden = !shown;
    }
  };
  for (const select of document.querySelectorAll("[data-fits]")) {
    fit(select);
    select.addEventListener("change", () => {
      fit(select);
      const preview = select.form.querySelector("button[data-for][hx-target]");
      if (preview?.hidden) document.querySelector(preview.getAttribute("hx-target")).replaceChildren();
      else preview?.click();
    });
  }

  for (const button of document.querySelectorAll("[data-ticked]")) {
    const update = () => {
      const controls = [...button.form.elements], ticked = controls.filter((control) => control.checked);
      for (const control of controls.filter((control) => control.dataset.kind)) {
        control.disabled = ticked.length > 0 && control.dataset.kind !== ticked[0].dataset.kind;
        control.title = control.disabled ? "Only runs with the same figures can be compared" : "";
      }
      button.disabled = ticked.length < Number(button.dataset.ticked);
    };
    document.addEventListener("change", update);
    window.addEventListener("pageshow", update);
    update();
  }

  // A spreadsheet would run what begins like a formula.
  const defused = (text) => (/^[=+\-@]/.test(text) && Number.isNaN(Number(text.replaceAll(",", ""))) ? `'${text}` : text);
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csv = (rows) => rows.map((row) => row.map((value) => quoted(defused(String(value)))).join(",")).join("\n");
  const shown = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim().replace(/\s+/g, " ").replace(/^−/, "-")));
  window.headroomCsv = csv; // of a chart too
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy-table]");
    const table = button?.table ?? button?.parentElement.querySelector("table");
    if (!table) return;
    await navigator.clipboard.writeText(csv(shown(table)));
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  });

  // The button stands in the head of the list, else in its foot, else in a line below it.
  const tools = () => {
    for (const list of document.querySelectorAll(".table-responsive")) {
      list.classList.toggle("more-columns", list.scrollWidth > list.clientWidth + 4);
    }
    for (const list of document.querySelectorAll("main .table-responsive:has(> .card-table > thead):not(.copyable)")) {
      list.classList.add("copyable");
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "copy-list", title: "Copy as CSV", textContent: "CSV" });
      button.dataset.copyTable = "";
      button.table = list.querySelector("table");
      const head = list.previousElementSibling;
      const foot = list.parentElement.querySelector(":scope > .card-footer.d-flex");
      if (head?.matches(".card-header:not(summary), .difference-title")) {
        const actions = head.querySelector(":scope > .card-actions");
        if (actions) actions.prepend(button);
        else head.append(button);
      } else if (foot) {
        foot.insertBefore(button, foot.querySelector(".pagination"));
      } else {
        const end = document.createElement("div");
        const rows = list.querySelectorAll("tbody > tr:not(.table-total)").length;
        end.className = "list-end";
        end.textContent = rows > 10 ? `${rows} rows` : "";
        end.append(button);
        list.append(end);
      }
    }
  };

  // Of a long table of a report the first rows show, and a button shows the others. On a phone, where rows are
  // cards, three are enough.
  const long = ":has(tbody > tr:nth-child(25))";
  const tall = matchMedia("(max-width: 767px)").matches ? `:is(${long}, :has(.table-cards > tbody > tr:nth-child(6)))` : long;
  const shorten = () => {
    for (const list of document.querySelectorAll(`.block-table > .table-responsive${tall}:not(.shortened)`)) {
      list.classList.add("shortened", "first-rows");
      const button = document.createElement("button");
      const rows = list.querySelectorAll("tbody > tr").length;
      Object.assign(button, { type: "button", className: "btn btn-sm all-rows", textContent: `Show all ${rows} rows` });
      button.addEventListener("click", () => {
        list.classList.remove("first-rows");
        button.remove();
      });
      list.after(button);
    }
  };
  shorten();
  document.addEventListener("htmx:afterSettle", shorten);
  tools();
  document.addEventListener("htmx:afterSettle", tools);
  window.addEventListener("load", tools);

  // On a phone the tab that is open may lie beyond the edge.
  document.querySelector(".nav-tabs .active, .place-tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // What a link leads to opens.
  const opened = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const folded = target.matches("details") ? target : target.querySelector(":scope > details");
    if (folded) folded.open = true;
    for (let around = target.closest("details"); around; around = around.parentElement.closest("details")) {
      around.open = true;
    }
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", opened);
  opened();

  // Below the first screen of a result its figures stay in one line.
  const bar = document.getElementById("result-bar");
  const screen = document.querySelector(".first-screen");
  if (bar && screen) {
    new IntersectionObserver(([seen]) => (bar.hidden = seen.isIntersecting || seen.boundingClientRect.top > 0)).observe(screen);
  }

  // On paper all sections are open.
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.card:not([open])")];
    for (const section of closed) section.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const section of closed) section.open = false;
  });

  // Saved work must not be lost by a stray click on a link.
  let changed = false;
  document.addEventListener("input", (event) => {
    if (event.target.name && event.target.closest("[data-warn-unsaved]")) changed = true;
  });
  document.addEventListener("submit", () => (changed = false));
  window.addEventListener("beforeunload", (event) => {
    if (changed) event.preventDefault();
  });
})();
