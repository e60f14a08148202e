// Draws the figures that the server sends as JSON, in the colours of the page's theme.
//   {% chart figure "x-chart" "What it shows" %} makes a frame and the JSON beside it.
(() => {
  "use strict";
  // No chart leaves the house: Plotly's own toolbar offers to upload it to a cloud.
  const CONFIG = {
    responsive: true,
    displayModeBar: false,
    showTips: false,
    plotlyServerURL: "",
    showSendToCloud: false,
  };
  const ROWS = 500; // of the table behind a chart
  const POINTS = 2000; // of a line that others follow
  const LINE = 20; // px of a legend with one line, which the height of a figure includes
  const GAP = 4; // px below a legend
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

  const DASHES = { dot: [1, 1], dash: [3, 3], dashdot: [3, 1, 1, 1] }; // as Plotly draws them, in line widths of 3 px at least
  // The background of a line with gaps: its colour and nothing, in turn.
  const dashes = (paint, width, parts) => {
    let at = 0;
    const stops = parts.map((part, i) => {
      const from = at;
      at += part * Math.max(width, 3);
      return `${i % 2 ? "transparent" : paint} ${from}px ${at}px`;
    });
    return `repeating-linear-gradient(90deg, ${stops.join(", ")})`;
  };
  const SHAPES = { // outlines of markers in a legend, other than circles and diamonds
    square: "inset(0)",
    "triangle-up": "polygon(50% 0, 100% 100%, 0 100%)",
    star: "polygon(50% 0, 62% 36%, 100% 38%, 70% 60%, 81% 97%, 50% 76%, 19% 97%, 30% 60%, 0 38%, 38% 36%)",
    cross: "polygon(33% 0, 67% 0, 67% 33%, 100% 33%, 100% 67%, 67% 67%, 67% 100%, 33% 100%, 33% 67%, 0 67%, 0 33%, 33% 33%)",
    x: "polygon(20% 0, 50% 30%, 80% 0, 100% 20%, 70% 50%, 100% 80%, 80% 100%, 50% 70%, 20% 100%, 0 80%, 30% 50%, 0 20%)",
  };
  const swatch = (line) => {
    const mark = document.createElement("i");
    const paint = line.line?.color ?? line.marker?.color;
    if (line.fillpattern) {
      mark.className = "striped";
      mark.style.color = paint;
    } else if (line.fill || line.stackgroup || line.type === "bar") {
      mark.style.background = line.fillcolor ?? paint;
      if (line.line?.width) mark.style.borderTop = `1px ${line.line.dash ? "dotted" : "solid"} ${paint}`;
    } else if (line.mode === "markers") {
      const symbol = line.marker.symbol ?? "circle";
      mark.className = symbol === "diamond" ? "point diamond" : "point";
      if (symbol.endsWith("-open")) mark.style.border = `2px solid ${paint}`;
      else mark.style.background = paint;
      if (SHAPES[symbol]) {
        mark.style.clipPath = SHAPES[symbol];
        mark.style.borderRadius = "0";
      }
    } else {
      mark.className = "line";
      const width = line.line?.width ?? 2;
      const parts = DASHES[line.line?.dash];
      mark.style.height = `${width}px`;
      mark.style.background = parts ? dashes(paint, width, parts) : paint;
    }
    return mark;
  };

  // Lines of one group, such as a band and its middle, come and go together.
  const choose = (frame, at, entry) => {
    const shown = entry.getAttribute("aria-checked") !== "true";
    const group = frame.data[at].legendgroup;
    const lines = frame.data.flatMap((line, i) => (i === at || (group && line.legendgroup === group) ? [i] : []));
    entry.setAttribute("aria-checked", String(shown));
    Plotly.restyle(frame, { visible: shown || "legendonly" }, lines);
  };

  const button = (words, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.dataset.legend = "";
    made.append(...words);
    made.addEventListener("click", () => act(made));
    return made;
  };

  // Plotly's own legend takes a line per entry on a phone, and no key reaches it.
  const legendOf = (frame, figure) => {
    if (frame.nextElementSibling?.matches(".chart-legend")) frame.nextElementSibling.remove();
    const lines = figure.data.map((line, at) => [line, at]).filter(([line]) => line.name && line.showlegend !== false);
    if (!(figure.layout.showlegend ?? lines.length > 1)) return null;
    const legend = document.createElement("div");
    legend.className = "chart-legend";
    legend.append(...lines.map(([line, at]) => {
      const entry = button([swatch(line), line.name], (made) => choose(frame, at, made));
      entry.setAttribute("role", "checkbox");
      entry.setAttribute("aria-checked", String(line.visible !== "legendonly"));
      return entry;
    }));
    // The parts of a bar are known by their colours alone.
    const bars = lines.some(([line]) => line.type === "bar");
    const later = bars ? [] : [...legend.children].slice(LEGEND);
    if (later.length) {
      for (const entry of later) entry.hidden = true;
      const more = button([`${later.length} more`], () => {
        for (const entry of later) entry.hidden = false;
        more.remove();
      });
      more.title = `Show ${later.length} more series`;
      legend.append(more);
    }
    frame.after(legend);
    return legend;
  };

  // The legend stands on the upper margin of its chart, which grows with its lines.
  const sizeOf = (figure, legend) => {
    const lines = legend?.offsetHeight ? legend.offsetHeight + GAP : 0;
    return { "height": figure.layout.height + Math.max(0, lines - GAP - LINE), "margin.t": figure.layout.margin.t + lines };
  };

  // The blue of lines is too dim on a dark surface. The lighter blue must still differ from it.
  const ON_DARK = { "#0072B2": "#3A9AD9", "#56B4E9": "#A8DCF7" };

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
      hoverlabel: { bgcolor: surface, bordercolor: grid, font: { color: font } },
    };
    for (const key of Object.keys(out)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      const title = { ...out[key].title, font: { size: 12, color: dim } };
      out[key] = { ...out[key], title, gridcolor: grid, linecolor: grid, zerolinecolor: grid };
    }
    return out;
  };

  // Charts over time share zoom and cursor. The address keeps the range: ?zoom-from=…&zoom-to=…
  const ENDS = ["zoom-from", "zoom-to"];
  const overTime = (frame) => frame.layout?.xaxis?.type === "date";
  const others = (frame) => [...document.querySelectorAll("[data-drawn]")].filter((other) => other !== frame && overTime(other));
  const range = () => {
    const sent = new URLSearchParams(location.search);
    const ends = ENDS.map((name) => sent.get(name));
    return ends.every(Boolean) ? ends : null;
  };
  const keep = (ends) => {
    const address = new URL(location);
    ENDS.forEach((name, at) => (
      ends ? address.searchParams.set(name, String(ends[at]).slice(0, 16).replace(" ", "T")) : address.searchParams.delete(name)
    ));
    history.replaceState(history.state, "", address);
    zoomed();
  };
  const zoomed = () => {
    for (const button of document.querySelectorAll("[data-chart-tool=reset]")) {
      button.hidden = !range() || !overTime(button.closest(".chart-box").querySelector("[data-figure]"));
    }
  };
  // Plotly tells a moment as text, and wants milliseconds.
  const instant = (moment) => (typeof moment === "number" ? moment : Date.parse(`${String(moment).replace(" ", "T")}Z`));
  const DAY = 86400000; // ms
  const LONGEST = 365 * DAY;
  const TICKS = 8;
  // Plotly's day of the year begins again after a year, so days of a longer trace are numbered here.
  const numberDays = (frame) => {
    if (frame.layout.meta !== "trace time") return;
    const [begin, end] = frame.layout.xaxis.range.map(instant);
    if (end <= LONGEST) return;
    const step = DAY * Math.ceil((end - begin) / DAY / TICKS);
    const first = Math.ceil(begin / step) * step;
    const ticks = Array.from({ length: Math.floor((end - first) / step) + 1 }, (_, at) => first + at * step);
    Plotly.relayout(frame, {
      "xaxis.tickmode": "array", "xaxis.tickvals": ticks, "xaxis.ticktext": ticks.map((at) => `Day ${at / DAY + 1}`),
      "xaxis.hoverformat": "%H:%M",
    });
  };
  let following = false; // true while the others are moved
  const share = (frame) => {
    frame.on("plotly_relayout", (change) => {
      const reset = change["xaxis.autorange"];
      if (reset || "xaxis.range" in change || "xaxis.range[0]" in change) numberDays(frame);
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
      const xval = instant(event.xvals[0]);
      for (const other of others(frame)) if (other.offsetParent) Plotly.Fx.hover(other, { xval }, ["xy"]);
      following = false;
    });
    frame.on("plotly_unhover", () => {
      if (following) return;
      following = true;
      for (const other of others(frame)) Plotly.Fx.unhover(other);
      following = false;
    });
  };

  const parsed = (frame) => JSON.parse(document.getElementById(frame.dataset.figure)?.textContent || '{"data": [], "layout": {}}');

  // Steps come where they change. For the cursor they get a value wherever another line of the page has one.
  let grid = null;
  const moments = () => {
    const figures = [...document.querySelectorAll("[data-figure]")].map(parsed);
    const lines = figures.filter((figure) => figure.layout.hovermode === "x unified").flatMap((figure) => figure.data);
    return lines.flatMap((line) => (line.x ? [line.x] : [])).reduce((longest, x) => (x.length > longest.length && x.length <= POINTS ? x : longest), []);
  };
  const fill = (line) => {
    const known = new Map(line.x.map((x, at) => [x, line.y[at]]));
    const within = grid.filter((x) => x > line.x[0] && x < line.x.at(-1));
    line.x = [...new Set([...line.x, ...within])].sort((a, b) => (a < b ? -1 : 1)); // times are text, hours are numbers
    let held = null;
    line.y = line.x.map((x) => (held = known.has(x) ? known.get(x) : held));
  };
  const figureOf = (frame) => {
    const figure = parsed(frame);
    if (figure.layout.hovermode !== "x unified") return figure;
    grid ??= moments();
    for (const line of figure.data) if (line.line?.shape === "hv" && !line.customdata && line.x?.length > 1) fill(line);
    return figure;
  };

  const draw = (frame) => {
    if (!document.getElementById(frame.dataset.figure) || !window.Plotly) return;
    const dark = document.documentElement.getAttribute("data-bs-theme") === "dark";
    const drawn = figureOf(frame);
    const figure = dark ? JSON.parse(JSON.stringify(drawn, (_, value) => ON_DARK[value] ?? value)) : drawn;
    const legend = legendOf(frame, figure);
    let size = sizeOf(figure, legend);
    // When the window changes, Plotly takes the height of the frame.
    frame.style.minHeight = `${size.height}px`;
    const { margin } = figure.layout;
    const layout = { ...themed(figure.layout), showlegend: false, height: size.height, margin: { ...margin, t: size["margin.t"] } };
    Plotly.react(frame, figure.data, layout, CONFIG).then(() => {
      if (legend) {
        new ResizeObserver(() => {
          const now = sizeOf(figure, legend);
          if (!legend.isConnected) return; // another drawing replaced it
          if (now.height === size.height && now["margin.t"] === size["margin.t"]) return;
          size = now;
          frame.style.minHeight = `${size.height}px`;
          // A height of its own would fix the width too, so let the frame size the chart.
          Plotly.relayout(frame, { "margin.t": size["margin.t"] }).then(() => Plotly.Plots.resize(frame));
        }).observe(legend);
      }
      if (!frame.dataset.drawn) {
        share(frame);
        numberDays(frame);
        if (range() && overTime(frame)) Plotly.relayout(frame, { "xaxis.range": range() });
      }
      frame.dataset.drawn = "true";
      zoomed();
    });
  };

  const cell = (row, tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (tag === "th") made.scope = "col";
    row.append(made);
  };
  const words = (value) => {
    if (typeof value !== "number") return value ?? "";
    const size = Math.abs(value);
    return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 1 ? 2 : 4 });
  };
  const title = (layout, axis) => layout[axis]?.title?.text || "";

  // Long lines come with their first moment and their step in ms.
  const stepped = ({ x0, dx, y }) => y.map((_, at) => new Date(instant(x0) + at * dx).toISOString().slice(0, 19));
  // Times of a trace without dates count from 1970.
  const traceTime = (moment) => `Day ${Math.floor(instant(moment) / DAY) + 1}, ${String(moment).slice(11, 16)}`;

  // What a chart shows as rows, the first one with the heads.
  const rowsOf = (figure) => {
    const sideways = figure.data.some((line) => line.orientation === "h");
    const [first, second] = sideways ? ["y", "x"] : ["x", "y"];
    const across = title(figure.layout, `${first}axis`) || figure.layout.meta || (sideways ? "Name" : first);
    const map = figure.data.find((line) => line.type === "heatmap");
    if (map) return [[across, ...map.x], ...map.z.map((row, at) => [map.y[at], ...row.map((value) => value ?? "")])];
    const drawn = figure.data.filter((line) => line.y && (line.x || line.dx)).map((line) => (line.x ? line : { ...line, x: stepped(line) }));
    // Points of several lines, with one x many times, fit into no column. A line has a value at each x.
    const isShared = ({ mode, [first]: at }) => mode === "markers" && new Set(at).size < at.length
    && drawn.some((line) => line.mode !== "markers" && at.every((x) => line[first].includes(x)));
    const lines = drawn.filter((line) => !isShared(line));
    // A line between two equal values, such as a limit, has its value in every row.
    const isConstant = (line) => line[second].length === 2 && line[second][0] === line[second][1];
    const constant = lines.every(isConstant) ? () => false : isConstant;
    // Points of one series with the same x, as at a step, take a row each.
    const rows = new Map();
    lines.forEach((line, i) => {
      if (constant(line)) return;
      const seen = new Map();
      line[first].forEach((x, at) => {
        const nth = seen.get(x) || 0;
        seen.set(x, nth + 1);
        if (!rows.has(x)) rows.set(x, []);
        const same = rows.get(x);
        same[nth] ||= Array(lines.length).fill("");
        same[nth][i] = line[second][at] ?? "";
      });
    });
    const isName = (x) => typeof x === "string" && !/^\d{4}-\d\d-/.test(x); // names keep the order of the chart
    const order = [...rows].sort(([a], [b]) => (isName(a) || a === b ? 0 : a < b ? -1 : 1));
    const names = lines.map((line) => line.name || title(figure.layout, `${second}axis`));
    const heads = names.map((name, at) => ( // the two ends of a band
      names.indexOf(name) !== at ? `${name}, upper end` : names.lastIndexOf(name) !== at ? `${name}, lower end` : name
    ));
    // A step holds its value until the next one.
    lines.forEach((line, i) => {
      if (constant(line)) for (const [, same] of order) for (const values of same) values[i] = line[second][0];
      if (line.line?.shape !== "hv") return;
      let held = "";
      for (const [, same] of order) for (const values of same) held = values[i] = values[i] === "" ? held : values[i];
    });
    const told = across === "trace time" ? traceTime : (x) => x;
    const all = order.flatMap(([x, same]) => same.map((values) => [told(x), ...values]));
    // Bars in groups: one column of values, and one of groups.
    const grouped = lines.length > 1 && all.every((row) => row.filter((value) => value !== "").length === 2);
    if (!grouped) return [[across, ...heads], ...all];
    const group = (values) => values.findIndex((value) => value !== "");
    const value = title(figure.layout, `${second}axis`) || "Value";
    return [[across, value, "Group"], ...all.map(([x, ...values]) => [x, values[group(values)], names[group(values)]])];
  };

  // For those who do not see the chart, and to read values off.
  const tabulate = (figure) => {
    const table = document.createElement("table");
    table.className = "table table-sm";
    const [heads, ...found] = rowsOf(figure);
    // Next to lines of regular times, the moments between them at which a step changes have no row.
    const full = /^\d{4}-\d\d-/.test(found[0]?.[0]) ? found.filter((row) => row.every((value) => value !== "")) : [];
    const rows = full.length > 2 ? full : found;
    const head = table.createTHead().insertRow();
    for (const name of heads) cell(head, "th", name);
    const every = Math.ceil(rows.length / ROWS);
    const body = table.createTBody();
    rows.filter((_, at) => at % every === 0).forEach(([x, ...values]) => {
      const row = body.insertRow();
      cell(row, "td", words(x).toString().replace(/^(\d{4}-\d\d-\d\d)T/, "$1 "));
      for (const value of values) cell(row, "td", value === "" ? "no data" : words(value));
    });
    return table;
  };

  // The picture has a ground of its own: the page's would not come along.
  const picture = async (frame) => {
    const showlegend = frame.nextElementSibling?.matches(".chart-legend");
    const margin = { ...frame.layout.margin, t: 8 };
    const layout = { ...frame.layout, showlegend, margin, paper_bgcolor: colour("--tblr-bg-surface") };
    const { clientWidth: width, clientHeight: height } = frame;
    const address = await Plotly.toImage({ data: frame.data, layout }, { format: "png", scale: 2, width, height });
    const bytes = Uint8Array.from(atob(address.split(",")[1]), (letter) => letter.charCodeAt(0));
    return new Blob([bytes], { type: "image/png" });
  };
  // Browsers give a page its clipboard over HTTPS only. Else the copy is a file.
  const copied = async (kind, made, name) => {
    if (navigator.clipboard?.write) return navigator.clipboard.write([new ClipboardItem({ [kind]: made })]);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await made);
    link.download = name;
    return link.click();
  };
  const csvOf = (frame) => new Blob([headroomCsv(rowsOf(figureOf(frame)))], { type: "text/plain" });
  const TOOLS = {
    png: async (frame) => copied("image/png", picture(frame), `${frame.id}.png`),
    csv: async (frame) => copied("text/plain", Promise.resolve(csvOf(frame)), `${frame.id}.csv`),
    reset: async (frame) => Plotly.relayout(frame, { "xaxis.autorange": true }),
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-chart-tool]");
    if (!button) return;
    await TOOLS[button.dataset.chartTool](button.closest(".chart-box").querySelector("[data-figure]"));
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  });

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
    behind.append(tabulate(figureOf(event.target.closest(".chart-box").querySelector("[data-figure]"))));
  }, true);
  document.addEventListener("htmx:afterSettle", (event) => {
    grid = null;
    // After an outer swap the event comes from the old element: look in the page.
    if (document.querySelector("[data-figure]:not([data-drawn])")) drawAll(document);
    else drawAll(event.target);
  });
})();
