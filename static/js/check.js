// What is wrong with a scenario, beside its field while it is typed: the form is sent to where it is
// saved, which answers with what saving would say. Without scripts saving says it.
(() => {
  "use strict";
  const PAUSE_MS = 600;
  const touched = new Set();
  let waiting = null;
  let latest = 0;

  const beside = (field, words) => {
    const told = document.createElement("div");
    told.className = "invalid-feedback d-block";
    told.textContent = words;
    field.classList.add("is-invalid");
    field.setAttribute("aria-invalid", "true");
    field.after(told);
  };

  // Below the form, where saving is: what there is, each a link to its field.
  const below = (form, faults, rest) => {
    const told = form.querySelector("#checked");
    told.replaceChildren();
    const lines = [...faults.map((fault) => [fault.label, fault.words, fault.id]), ...rest.map((words) => ["", words, ""])];
    for (const [label, words, id] of lines) {
      const line = document.createElement("div");
      if (id) {
        const link = document.createElement("a");
        link.href = `#${id}`;
        link.textContent = label;
        line.append(link, `: ${words}`);
      } else {
        line.textContent = label ? `${label}: ${words}` : words;
      }
      told.append(line);
    }
  };

  const check = async (form) => {
    const asked = ++latest;
    const data = new FormData(form);
    data.set("action", "check");
    const answer = await fetch(location.pathname, { method: "POST", body: data }).catch(() => null);
    // A later question has overtaken it, another view stands there, or the login is over: saving says so.
    if (asked !== latest || !answer?.ok || !form.isConnected) return;
    if (!answer.headers.get("content-type").startsWith("application/json")) return;
    const { faults, rest } = await answer.json();
    form.querySelectorAll(".invalid-feedback, #faults, #problems-box").forEach((old) => old.remove());
    form.querySelectorAll(".is-invalid").forEach((field) => {
      field.classList.remove("is-invalid");
      field.removeAttribute("aria-invalid");
    });
    // What has not been filled in yet is no fault before one has been there.
    const told = faults.filter((fault) => {
      const field = fault.id && document.getElementById(fault.id);
      return !field || field.value || touched.has(fault.id);
    });
    for (const fault of told) {
      const field = fault.id && document.getElementById(fault.id);
      if (field) beside(field, fault.words);
    }
    below(form, told, rest);
  };

  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-check]");
    if (!form || ["", "message"].includes(event.target.name)) return;
    touched.add(event.target.id);
    clearTimeout(waiting);
    waiting = setTimeout(() => check(form), PAUSE_MS);
  });
})();
