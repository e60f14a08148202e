// A point that is chosen in a chart of a proposal becomes what the comment is about.
(() => {
  "use strict";
  const form = document.getElementById("say");
  const about = document.getElementById("about");
  if (!form || !about) return;

  const put = (name, value) => {
    let field = form.querySelector(`input[name="${name}"]`);
    if (!field) {
      field = document.createElement("input");
      field.type = "hidden";
      field.name = name;
      form.append(field);
    }
    field.value = value;
  };

  const choose = (chart, point) => {
    form.querySelector('input[name="setting"]')?.remove();
    const said = { chart, series: point.data.name ?? "", time: String(point.x), value: String(point.y) };
    for (const [name, value] of Object.entries(said)) put(name, value);
    const words = document.createElement("p");
    words.className = "mb-2 wrap";
    words.textContent = `On ${chart}, ${said.series}, at ${said.time}: ${said.value}`;
    about.replaceChildren(words);
    form.scrollIntoView({ block: "center" });
    document.getElementById("text").focus();
  };

  // A frame listens once its chart has been drawn.
  for (const frame of document.querySelectorAll("[data-about] [data-figure]")) {
    const chart = frame.closest("[data-about]").dataset.about;
    const listen = () => frame.on("plotly_click", (event) => choose(chart, event.points[0]));
    if (frame.dataset.drawn) listen();
    else {
      const seen = new MutationObserver(() => {
        if (!frame.dataset.drawn) return;
        seen.disconnect();
        listen();
      });
      seen.observe(frame, { attributes: true, attributeFilter: ["data-drawn"] });
    }
  }
})();
