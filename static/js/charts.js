// Draws the figures that the server sends as JSON, in the colours of the page's theme.
//   {% chart figure "x-chart" "What it shows" %} makes a frame and the JSON beside it.
(() => {
  "use strict";
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  // A variable may hold an expression, so let the browser resolve it to a colour.
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const resolved = getComputedStyle(probe).color;
    probe.remove();
    return resolved;
  };

  // On a phone the legend takes a line per entry, which must not come out of the chart's height.
  const legendHeight = (frame, figure) => {
    if (frame.clientWidth >= 576 || figure.layout.showlegend === false) return 0;
    return 19 * figure.data.filter((line) => line.showlegend !== false).length;
  };

  const themed = (layout) => {
    const font = colour("--tblr-body-color");
    const grid = colour("--tblr-border-color");
    const surface = colour("--tblr-bg-surface");
    const out = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...layout.font, color: font, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: surface, bordercolor: grid, font: { color: font } },
    };
    for (const key of Object.keys(out)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      out[key] = { ...out[key], gridcolor: grid, linecolor: grid, zerolinecolor: grid };
    }
    return out;
  };

  const draw = (frame) => {
    const data = document.getElementById(frame.dataset.figure);
    if (!data || !window.Plotly) return;
    const figure = JSON.parse(data.textContent);
    figure.layout.height += legendHeight(frame, figure);
    Plotly.react(frame, figure.data, themed(figure.layout), CONFIG).then(() => {
      frame.dataset.drawn = "true";
    });
  };

  const drawAll = (root) => {
    for (const frame of root.querySelectorAll("[data-figure]")) draw(frame);
  };

  document.addEventListener("DOMContentLoaded", () => {
    drawAll(document);
    new MutationObserver(() => drawAll(document)).observe(document.documentElement, {
      attributeFilter: ["data-bs-theme"],
    });
  });
  // What was drawn in a closed section has no width until it opens.
  document.addEventListener("toggle", (event) => {
    if (!event.target.open) return;
    for (const frame of event.target.querySelectorAll("[data-drawn]")) Plotly.Plots.resize(frame);
  }, true);
  document.addEventListener("htmx:afterSettle", (event) => {
    // After an outer swap the event comes from the old element: look in the page.
    if (document.querySelector("[data-figure]:not([data-drawn])")) drawAll(document);
    else drawAll(event.target);
  });
})();
