"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  // Okabe and Ito's colours, which colour-blind people tell apart; grey is the rest.
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8F98"];
  const ROWS = 24, ROW = 16, GAP = 3, TOP_HOLDERS = 12;
  const colour = (group) => COLOURS[group % COLOURS.length];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const unpack = async (text) => {
    const letters = atob(text), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  };
  const KINDS = { f8: Float64Array, i4: Int32Array, u1: Uint8Array };
  const table = async ({ rows, columns, packed }) => {
    const bytes = await unpack(packed), found = {};
    let at = 0;
    for (const [name, kind] of columns) {
      found[name] = new KINDS[kind](bytes, at, rows);
      at += rows * KINDS[kind].BYTES_PER_ELEMENT;
    }
    return found;
  };
  const [blocks, ranges] = await Promise.all([table(data.blocks), table(data.ranges)]);

  const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
  const unitOf = (nbytes) => UNITS.find(([, scale]) => Math.abs(nbytes) >= scale) || UNITS[3];
  const shown = (nbytes) => {
    const [unit, scale] = unitOf(nbytes);
    return `${(nbytes / scale).toFixed(scale === 1 ? 0 : nbytes / scale < 10 ? 2 : 1)} ${unit}`;
  };
  const count = (number) => number.toLocaleString("en-US");
  // Plotly reads some HTML in texts; names are to be shown as they are.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most / 2)}\u2026${text.slice(-most / 2)}`);
  const element = (kind, text, ...children) => {
    const made = document.createElement(kind);
    if (text !== null) made.textContent = text;
    made.append(...children);
    return made;
  };
  const swatch = (paint) => {
    const made = element("i", null);
    made.style.background = paint;
    return made;
  };

  // ---- what does not change
  at("subtitle").textContent = `${data.device}, placed by ${data.placed_by}`;
  for (const [value, name] of data.facts) at("facts").append(element("div", null, element("b", value), element("span", name)));
  for (const note of data.notes) at("notes").append(element("li", note));
  for (const item of at("facts").children) item.className = "fact";
  at("notes").hidden = data.notes.length === 0;
  const isBySize = data.grouped_by === "size";
  at("timeline-title").textContent = isBySize ? "Live bytes over time, by size of block" : "Live bytes over time, by holder";

  // ---- live bytes over time, and fragmentation
  const curves = data.curves;
  const total = curves.moments.map((_, i) => curves.live.reduce((sum, values) => sum + values[i], 0));
  const tallest = Math.max(...curves.committed, ...total, 1);
  const isLimitShown = data.limit !== null && data.limit < 2.5 * tallest;
  const [unit, scale] = unitOf(isLimitShown ? Math.max(data.limit, tallest) : tallest);
  const failure = data.markers.filter(([, label]) => label === data.failure_label).at(-1);
  const lineAt = (x, paint, dash) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: paint, width: dash ? 1 : 2, dash: dash || "solid" } });

  // The last event has a step too; at half of its width, what lies under the pointer is
  // still called by its number.
  const until = data.last_moment + 0.49;
  const moments = [...curves.moments, until], fragmentationMoments = [...curves.fragmentation_moments, until];
  const steps = (values) => [...values, values.at(-1)];

  const traces = () => {
    const lines = curves.live.map(steps).map((values, group) => ({
      name: plain(short(data.groups[group], 60)), x: moments, y: values.map((nbytes) => nbytes / scale),
      customdata: values.map(shown), stackgroup: "live", mode: "lines",
      line: { width: 0.6, color: colour(group), shape: "hv" }, fillcolor: colour(group),
      hovertemplate: "%{customdata}",
    }));
    const committed = steps(curves.committed);
    const line = (name, y, extra) => ({ name, x: moments, y, mode: "lines", hovertemplate: "%{customdata}", ...extra });
    lines.push(line("committed", committed.map((nbytes) => nbytes / scale),
      { customdata: committed.map(shown), line: { width: 2, color: style("--text"), shape: "hv" } }));
    if (isLimitShown) lines.push(line("limit", moments.map(() => data.limit / scale),
      { customdata: moments.map(() => shown(data.limit)), line: { width: 2, dash: "dash", color: style("--warn") } }));
    lines.push({ name: "fragmentation", x: fragmentationMoments, y: steps(curves.fragmentation).map((ratio) => 100 * ratio), yaxis: "y2",
      mode: "lines", line: { width: 1.5, color: style("--accent"), shape: "hv" }, showlegend: false, hovertemplate: "%{y:.0f} %" });
    return lines;
  };
  const axis = () => ({ gridcolor: style("--line"), zerolinecolor: style("--line"), linecolor: style("--line") });
  const base = () => ({ paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: style("--text"), size: 13, family: "system-ui, DejaVu Sans, sans-serif" } });
  const markers = data.markers.length <= 80 ? data.markers : [];
  const shapes = (moment) => [
    ...markers.map(([x, label]) => lineAt(x, label === data.failure_label ? style("--warn") : style("--line"), "dot")),
    lineAt(moment, style("--accent")),
  ];
  const layout = () => ({
    ...base(), margin: { l: 64, r: 14, t: 8, b: 44 }, hovermode: "x unified",
    hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 12 } },
    xaxis: { ...axis(), title: { text: "events" }, tickformat: ",d", hoverformat: ",d", range: [0, until], anchor: "y2" },
    yaxis: { ...axis(), title: { text: unit }, domain: [0.3, 1], rangemode: "tozero" },
    yaxis2: { ...axis(), title: { text: "fragm. %" }, domain: [0, 0.2], range: [0, 102], tickvals: [0, 50, 100] },
    shapes: shapes(moment),
    annotations: [{
      x: data.peak_moment, y: Math.max(...total) / scale, text: `peak ${shown(Math.max(...total))}`, ax: 0, ay: -22, arrowhead: 0, arrowwidth: 1,
      arrowcolor: style("--text"), bgcolor: style("--card"), borderpad: 2, font: { size: 12 },
      xanchor: data.peak_moment > 0.9 * data.last_moment ? "right" : data.peak_moment < 0.1 * data.last_moment ? "left" : "center",
    }],
  });
  const bare = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  const drawSizes = () => {
    const names = data.bands.map((band) => band.name);
    const [sizeUnit, sizeScale] = unitOf(Math.max(...data.bands.map((band) => band.nbytes), 1));
    const bar = (name, paint, values, texts, which) => ({ type: "bar", orientation: "h", name, y: names, x: values, customdata: texts, marker: { color: paint }, xaxis: which, hovertemplate: "%{customdata}<extra></extra>" });
    Plotly.react(at("sizes"), [
      bar("blocks", COLOURS[4], data.bands.map((band) => band.blocks), data.bands.map((band) => `${count(band.blocks)} blocks`), "x"),
      bar("bytes", COLOURS[0], data.bands.map((band) => band.nbytes / sizeScale), data.bands.map((band) => `${shown(band.nbytes)} in all`), "x2"),
    ], {
      ...base(), margin: { l: 108, r: 10, t: 6, b: 40 }, showlegend: false, bargap: 0.3,
      hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text") } },
      yaxis: { ...axis(), autorange: "reversed", ticks: "" },
      xaxis: { ...axis(), domain: [0, 0.46], title: { text: "blocks" }, nticks: 4, rangemode: "tozero" },
      xaxis2: { ...axis(), domain: [0.54, 1], title: { text: `${sizeUnit} in all` }, nticks: 4, rangemode: "tozero" },
    }, { responsive: true, displayModeBar: false });
  };

  // ---- the moment that is looked at
  let moment = data.peak_moment, live = [];
  const liveAt = (rows, m) => {
    const found = [];
    for (let i = 0; i < rows.start.length; i++) if (rows.start[i] <= m && m < rows.stop[i]) found.push(i);
    return found;
  };
  const sum = (rows, some) => some.reduce((all, i) => all + rows.nbytes[i], 0);

  const canvas = at("map"), ink = canvas.getContext("2d");
  let perRow = 1, width = 1;
  const paintRange = (address, nbytes, gap) => {
    const perPixel = perRow / width;
    let start = address;
    const end = address + nbytes;
    while (start < end) {
      const row = Math.min(Math.floor(start / perRow), ROWS - 1);
      const stop = row === ROWS - 1 ? end : Math.min(end, (row + 1) * perRow);
      const left = (start - row * perRow) / perPixel, long = (stop - start) / perPixel;
      ink.fillRect(left, row * (ROW + GAP), Math.max(long - (gap && stop === end && long > 3 ? 1 : 0), 0.6), ROW);
      start = stop;
    }
  };
  const drawMap = () => {
    const zoom = window.devicePixelRatio || 1, height = ROWS * (ROW + GAP) - GAP;
    width = at("map-frame").clientWidth;
    // Whole bytes: rounded edges of rows would leave a range that never ends.
    perRow = Math.ceil(Math.max(data.span, 1) / ROWS);
    canvas.width = width * zoom;
    canvas.height = height * zoom;
    canvas.style.height = `${height}px`;
    ink.setTransform(zoom, 0, 0, zoom, 0, 0);
    ink.fillStyle = style("--hole");
    for (let row = 0; row < ROWS; row++) ink.fillRect(0, row * (ROW + GAP), width, ROW);
    ink.fillStyle = style("--free");
    for (const i of liveAt(ranges, moment)) paintRange(ranges.address[i], ranges.nbytes[i], false);
    for (const i of live) {
      ink.fillStyle = colour(blocks.group[i]);
      paintRange(blocks.address[i], blocks.nbytes[i], true);
    }
    ink.fillStyle = style("--text");
    if (data.arenas.length > 1 && data.arenas.length < 200)
      for (const arena of data.arenas.slice(1)) paintRange(arena.at, (perRow / width) * 1.2, false);
  };

  const drawHolders = () => {
    const held = new Map();
    for (const i of live) {
      const holder = isBySize ? blocks.group[i] : blocks.holder[i];
      const one = held.get(holder) || { nbytes: 0, blocks: 0, group: blocks.group[i] };
      one.nbytes += blocks.nbytes[i];
      one.blocks += 1;
      held.set(holder, one);
    }
    const rows = [...held].sort((a, b) => b[1].nbytes - a[1].nbytes).slice(0, TOP_HOLDERS).map(([holder, one]) => {
      const name = element("td", null, swatch(colour(one.group)), isBySize ? data.groups[holder] : data.holders[holder]);
      return element("tr", null, name, element("td", shown(one.nbytes)), element("td", count(one.blocks)));
    });
    at("holders").replaceChildren(...rows);
  };

  // What lies in two arenas is never one piece, though the map puts them side by side.
  const arenaStarts = new Set(data.arenas.map((arena) => arena.at));
  const gapsAt = () => {
    const opens = [], closes = [];
    let end = -1;
    const taken = liveAt(ranges, moment).sort((a, b) => ranges.address[a] - ranges.address[b]);
    for (const i of taken) {
      if (ranges.address[i] > end || arenaStarts.has(ranges.address[i])) {
        if (end >= 0) closes.push(end);
        opens.push(ranges.address[i]);
      }
      end = ranges.address[i] + ranges.nbytes[i];
    }
    if (end >= 0) closes.push(end);
    return [opens, closes, sum(ranges, taken)];
  };
  const drawReadout = () => {
    const [opens, closes, committed] = gapsAt();
    for (const i of live) {
      closes.push(blocks.address[i]);
      opens.push(blocks.address[i] + blocks.nbytes[i]);
    }
    const byValue = (a, b) => a - b;
    opens.sort(byValue);
    closes.sort(byValue);
    const gaps = opens.map((open, i) => Math.max(closes[i] - open, 0));
    const largest = gaps.reduce((most, gap) => Math.max(most, gap), 0), free = gaps.reduce((all, gap) => all + gap, 0);
    const bytes = sum(blocks, live);
    const part = (name, value) => [`${name} `, element("b", value), " \u00b7 "];
    const marker = data.markers.filter(([x]) => x <= moment).at(-1);
    at("readout").replaceChildren(
      "event ", element("b", count(moment)), ` of ${count(data.last_moment)}`, marker ? ` (after \u201c${short(marker[1], 40)}\u201d)` : "", " \u00b7 ",
      ...part("live", `${shown(bytes)} in ${count(live.length)} blocks`), ...part("committed", shown(committed)),
      ...part("free", `${shown(free)}, the largest piece ${shown(largest)}`), "fragmentation ", element("b", `${free ? Math.round(100 * (1 - largest / free)) : 0} %`),
    );
    at("holders-moment").textContent = `at event ${count(moment)}`;
  };

  let isAsked = false, lineMoment = moment;
  const show = (wanted) => {
    moment = Math.max(0, Math.min(data.last_moment, Math.round(wanted)));
    at("moment").value = moment;
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      live = liveAt(blocks, moment);
      hideTip();
      drawMap();
      drawHolders();
      drawReadout();
      if (lineMoment === moment || !window.Plotly) return;
      lineMoment = moment;
      Plotly.relayout(at("timeline"), { [`shapes[${markers.length}].x0`]: moment, [`shapes[${markers.length}].x1`]: moment });
    });
  };

  // ---- the block under the pointer
  const hideTip = () => { at("tip").hidden = true; };
  const addressText = (address) => {
    const arena = data.arenas.filter((one) => one.at <= address).at(-1);
    const offset = address - arena.at;
    return arena.address === null ? `offset ${count(offset)}` : `address 0x${(BigInt(arena.address) + BigInt(Math.round(offset))).toString(16)}`;
  };
  const showTip = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const row = Math.floor(y / (ROW + GAP)), address = (row + x / width) * perRow, slack = perRow / width / 2;
    const hit = live.find((i) => blocks.address[i] <= address && address < blocks.address[i] + blocks.nbytes[i])
      ?? live.find((i) => blocks.address[i] - slack <= address && address < blocks.address[i] + blocks.nbytes[i] + slack);
    if (hit === undefined || y % (ROW + GAP) > ROW) return hideTip();
    const isKept = blocks.stop[hit] > data.last_moment;
    const lines = [`${shown(blocks.nbytes[hit])} (${count(blocks.nbytes[hit])} bytes)`, data.holders[blocks.holder[hit]]];
    if (data.places[blocks.place[hit]] && data.places[blocks.place[hit]] !== lines[1]) lines.push(data.places[blocks.place[hit]]);
    lines.push(addressText(blocks.address[hit]), `from event ${count(blocks.start[hit])} ${isKept ? "on, never freed" : `to ${count(blocks.stop[hit])}`}`);
    const tip = at("tip");
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 18}px`;
  };

  const drawLegend = () => {
    const item = (paint, text) => element("span", null, swatch(paint), text);
    at("legend").replaceChildren(
      ...data.groups.map((name, group) => item(colour(group), short(name, 80))),
      item(style("--free"), "committed, free"), item(style("--hole"), "not committed"),
    );
    at("map-scale").textContent = `${data.map_note} \u00b7 a row is ${shown(data.span / ROWS)}`;
  };

  const slider = at("moment");
  slider.max = data.last_moment;
  slider.addEventListener("input", () => show(Number(slider.value)));
  for (const [id, where] of [["back", () => moment - 1], ["ahead", () => moment + 1], ["peak", () => data.peak_moment], ["end", () => data.last_moment], ["failure", () => failure[0]]])
    at(id).addEventListener("click", () => show(where()));
  at("failure").hidden = failure === undefined;
  canvas.addEventListener("pointermove", showTip);
  canvas.addEventListener("pointerleave", hideTip);
  window.addEventListener("resize", () => show(moment));

  const drawAll = () => {
    lineMoment = moment;
    Plotly.react(at("timeline"), traces(), layout(), bare);
    drawSizes();
    drawLegend();
    show(moment);
  };
  // Most of the time that a page takes to open is Plotly's: the map is there before it.
  drawLegend();
  show(moment);
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  document.head.append(element("script", at("plotly").textContent));
  drawAll();
  at("timeline").on("plotly_click", (event) => show(event.points[0].x));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.ready = "yes";
})();
