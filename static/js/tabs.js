// One part of a long page at a time, by the links of [data-tabs] to its sections [data-panel]:
//   <div data-tabs><a href="#plan">…</a></div> … <section id="plan" data-panel>…</section>
// The address says which (#plan, or anything inside it), so that it can be sent; without scripts,
// and on paper, all of them stand under each other.
(() => {
  "use strict";
  const bar = document.querySelector("[data-tabs]");
  if (!bar) return;
  const tabs = [...bar.querySelectorAll("a")];
  const panels = tabs.map((tab) => document.querySelector(tab.hash));

  const show = (chosen) => {
    tabs.forEach((tab, at) => {
      const on = at === chosen;
      tab.classList.toggle("active", on);
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panels[at].hidden = !on;
    });
    const { left, width } = tabs[chosen].getBoundingClientRect();
    const frame = bar.parentElement; // sideways alone: the page stays where it is
    frame.scrollLeft += left + width / 2 - frame.getBoundingClientRect().left - frame.clientWidth / 2;
    panels[chosen].dispatchEvent(new CustomEvent("tab:shown", { bubbles: true }));
  };

  // What the address names: a part, or something inside one.
  const named = () => (location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)))) || null;
  const follow = () => {
    const target = named();
    const at = target ? panels.findIndex((panel) => panel.contains(target)) : -1;
    show(at < 0 ? 0 : at);
    if (at >= 0 && target !== panels[at]) target.scrollIntoView();
  };

  const go = (at) => {
    history.replaceState(history.state, "", tabs[at].hash);
    show(at);
    const top = bar.parentElement.getBoundingClientRect().top;
    if (top <= 0) panels[at].scrollIntoView(); // the bar sticks: begin the part at its beginning
  };

  bar.setAttribute("role", "tablist");
  tabs.forEach((tab, at) => {
    tab.id = `tab-${panels[at].id}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panels[at].id);
    panels[at].setAttribute("role", "tabpanel");
    panels[at].setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // its address, beside this one
      event.preventDefault();
      go(at);
    });
  });
  bar.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = (steps[event.key] + tabs.length) % tabs.length;
    go(next);
    tabs[next].focus({ preventScroll: true });
  });

  window.addEventListener("hashchange", follow);
  window.addEventListener("beforeprint", () => {
    for (const panel of panels) {
      panel.hidden = false;
      panel.dispatchEvent(new CustomEvent("tab:shown", { bubbles: true }));
    }
  });
  window.addEventListener("afterprint", follow);
  // Charts and htmx wait for the page as a whole, and this comes before them.
  follow();
})();
