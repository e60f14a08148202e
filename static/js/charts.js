// Draws the figures that the server sends as JSON, in the colours of the page's theme.
//   {% chart figure "x-chart" "What it shows" %} makes a frame and the JSON beside it.
(() => {
  "use strict";
  // No chart leaves the house: Plotly's own toolbar offers to upload it to a cloud.
  const LEFT_OUT = ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"];
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: LEFT_OUT,
    plotlyServerURL: "",
    showSendToCloud: false,
  };
  const NARROW = 576; // px: on a phone fingers zoom, and a toolbar would hide the legend
  const ROWS = 500; // of the table behind a chart
  const LEGEND = 5; // entries of a legend before the others are asked for

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
    if (frame.clientWidth >= NARROW || figure.layout.showlegend === false) return 0;
    return 19 * figure.data.filter((line) => line.showlegend !== false).length;
  };

  // A long legend hides the chart, so that its later entries wait for a button.
  const shorten = (frame, figure) => {
    const later = figure.data.filter((line) => line.showlegend !== false).slice(LEGEND);
    if (!later.length || figure.layout.showlegend === false || frame.dataset.legend === "all") return;
    for (const line of later) line.showlegend = false;
    if (frame.nextElementSibling?.matches("[data-legend-more]")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn btn-sm mb-1";
    button.dataset.legendMore = "";
    button.textContent = `${later.length} more in the legend`;
    button.addEventListener("click", () => {
      frame.dataset.legend = "all";
      button.remove();
      draw(frame);
    });
    frame.after(button);
  };

  // The blue of lines is too dim on a dark surface.
  const BLUE = "#0072B2";
  const BLUE_ON_DARK = "#3A9AD9";

  const themed = (layout) => {
    const font = colour("--tblr-body-color");
    const grid = colour("--tblr-border-color");
    const surface = colour("--tblr-bg-surface");
    const dim = colour("--tblr-secondary");
    const out = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...layout.font, color: font, family: getComputedStyle(document.body).fontFamily },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: dim, activecolor: font },
      hoverlabel: { bgcolor: surface, bordercolor: grid, font: { color: font } },
    };
    for (const key of Object.keys(out)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      const title = { ...out[key].title, font: { size: 12, color: dim } };
      out[key] = { ...out[key], title, gridcolor: grid, linecolor: grid, zerolinecolor: grid };
    }
    return out;
  };

  // Lines are chosen in the legend by keyboard too, and the toolbar, which wants a pointer, is no
  // row of stops on the way there.
  const reachable = (frame) => {
    for (const button of frame.querySelectorAll(".modebar-btn")) button.tabIndex = -1;
    if (frame.querySelectorAll(".legend .traces").length < 2) return;
    for (const entry of frame.querySelectorAll(".legend .traces")) {
      const toggle = entry.querySelector(".legendtoggle");
      const line = entry.__data__?.[0]?.trace;
      if (!toggle || !line) continue;
      toggle.setAttribute("tabindex", "0");
      toggle.setAttribute("role", "checkbox");
      toggle.setAttribute("aria-label", entry.textContent);
      toggle.setAttribute("aria-checked", String(line.visible !== "legendonly"));
      toggle.onkeydown = (event) => {
        if (event.key !== " " && event.key !== "Enter") return;
        event.preventDefault();
        choose(frame, line, entry.textContent);
      };
    }
  };

  // Lines of one group, such as a band and its middle, come and go together, as under a pointer.
  const choose = (frame, line, name) => {
    const visible = line.visible === "legendonly" ? true : "legendonly";
    const group = frame.data.flatMap((other, at) => (
      at === line.index || (line.legendgroup && other.legendgroup === line.legendgroup) ? [at] : []
    ));
    Plotly.restyle(frame, { visible }, group).then(() => {
      const toggles = [...frame.querySelectorAll(".legend .legendtoggle")];
      toggles.find((toggle) => toggle.getAttribute("aria-label") === name)?.focus();
    });
  };

  // Charts over time share zoom and cursor. The address keeps the range: ?from=…&to=…
  const overTime = (frame) => frame.layout?.xaxis?.type === "date";
  const others = (frame) => [...document.querySelectorAll("[data-drawn]")].filter((other) => other !== frame && overTime(other));
  const range = () => {
    const sent = new URLSearchParams(location.search);
    return sent.get("from") && sent.get("to") ? [sent.get("from"), sent.get("to")] : null;
  };
  const keep = (ends) => {
    const address = new URL(location);
    ["from", "to"].forEach((name, at) => (
      ends ? address.searchParams.set(name, String(ends[at]).slice(0, 16).replace(" ", "T")) : address.searchParams.delete(name)
    ));
    history.replaceState(history.state, "", address);
  };
  let following = false; // true while the others are moved
  const share = (frame) => {
    frame.on("plotly_relayout", (change) => {
      const reset = change["xaxis.autorange"];
      if (following || !overTime(frame) || !(reset || "xaxis.range[0]" in change)) return;
      const ends = reset ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      keep(ends);
      following = true;
      const moved = others(frame).map((other) => Plotly.relayout(other, ends ? { "xaxis.range": ends } : { "xaxis.autorange": true }));
      Promise.all(moved).finally(() => (following = false));
    });
    frame.on("plotly_hover", (event) => {
      if (following || !overTime(frame) || !event.xvals) return;
      following = true;
      for (const other of others(frame)) if (other.offsetParent) Plotly.Fx.hover(other, { xval: event.xvals[0] }, ["xy"]);
      following = false;
    });
    frame.on("plotly_unhover", () => {
      if (following) return;
      following = true;
      for (const other of others(frame)) Plotly.Fx.unhover(other);
      following = false;
    });
  };

  const draw = (frame) => {
    const data = document.getElementById(frame.dataset.figure);
    if (!data || !window.Plotly) return;
    const dark = document.documentElement.getAttribute("data-bs-theme") === "dark";
    const text = dark ? data.textContent.replaceAll(`"${BLUE}"`, `"${BLUE_ON_DARK}"`) : data.textContent;
    const figure = JSON.parse(text);
    shorten(frame, figure);
    figure.layout.height += legendHeight(frame, figure);
    const config = { ...CONFIG, displayModeBar: frame.clientWidth < NARROW ? false : "hover" };
    Plotly.react(frame, figure.data, themed(figure.layout), config).then(() => {
      reachable(frame);
      if (!frame.dataset.drawn) {
        frame.on("plotly_afterplot", () => reachable(frame));
        share(frame);
        if (range() && overTime(frame)) Plotly.relayout(frame, { "xaxis.range": range() });
      }
      frame.dataset.drawn = "true";
    });
  };

  const cell = (row, tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (tag === "th") made.scope = "col";
    row.append(made);
  };
  const words = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 3 }) : value ?? "");
  const title = (layout, axis) => layout[axis]?.title?.text || "";

  // What a chart shows as rows, for those who do not see it, and to read values off.
  const tabulate = (figure) => {
    const table = document.createElement("table");
    table.className = "table table-sm";
    const head = table.createTHead().insertRow();
    const lines = figure.data.filter((line) => line.x && line.y && line.type !== "heatmap");
    cell(head, "th", title(figure.layout, "xaxis") || (figure.layout.meta || "x"));
    for (const line of lines) cell(head, "th", line.name || title(figure.layout, "yaxis"));
    const rows = new Map();
    lines.forEach((line, i) => line.x.forEach((x, at) => {
      if (!rows.has(x)) rows.set(x, Array(lines.length).fill(""));
      rows.get(x)[i] = words(line.y[at]);
    }));
    const order = [...rows].sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    const every = Math.ceil(order.length / ROWS);
    const body = table.createTBody();
    order.filter((_, at) => at % every === 0).forEach(([x, values]) => {
      const row = body.insertRow();
      cell(row, "td", words(x).toString().replace("T", " "));
      for (const value of values) cell(row, "td", value);
    });
    return table;
  };

  // What is hidden has no width, so it is not drawn.
  const drawAll = (root) => {
    for (const frame of root.querySelectorAll("[data-figure]")) if (!frame.closest("[hidden]")) draw(frame);
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
    const behind = event.target.querySelector(":scope > [data-table-of]");
    if (!behind || behind.childElementCount) return;
    behind.append(tabulate(JSON.parse(document.getElementById(behind.dataset.tableOf).textContent)));
  }, true);
  document.addEventListener("htmx:afterSettle", (event) => {
    // After an outer swap the event comes from the old element: look in the page.
    if (document.querySelector("[data-figure]:not([data-drawn])")) drawAll(document);
    else drawAll(event.target);
  });
})();
