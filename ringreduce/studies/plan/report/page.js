(() => {
  const { byId, data, number, percent, plain } = page;
  const PARTS = ["parameters", "gradients", "optimizer", "activations", "buffers"];
  const SHADES = ["#4269d0", "#3ca951", "#efb118", "#97bbf5", "#9c6b4e", "#ff725c", "#a463f2", "#6cc5b0", "#ff8ab7", "#7a1f5c", "#0e8a9a", "#b8b500"];
  const nameOf = (one) => one.text ?? data.names[one.strategy].name;
  const world = () => Number(byId("filter-world").value);
  const chosen = () => data.points.filter((one) => one.world === world());

  // --- words ---

  const gigabytes = (count) => `${number(count / 1e9, 3)} GB`;
  const seconds = (time) => time >= 1 ? `${number(time)} s` : time >= 1e-3 ? `${number(1e3 * time)} ms` : `${number(1e6 * time)} µs`;
  const share = (part) => `${(100 * part).toFixed(1)} %`;
  const perSecond = `${data.unit}/s`;
  const tip = (one) => [
    `<b>${plain(nameOf(one))}</b>, ${one.world.toLocaleString("en")} ranks`, `${number(one.rate)} ${perSecond}, ${share(one.efficiency)} efficient`,
    `step ${seconds(one.seconds)}, of which ${seconds(one.exposed)} exposed`, `${gigabytes(one.total)}${one.fits ? "" : ", too much"}; link ${gigabytes(one.link_bytes)}`,
    plain(one.bound), ...one.price ? [`${number(one.price, 3)} per million`] : [],
  ].join("<br>");
  const hover = (points) => ({ text: points.map(tip), hovertemplate: "%{text}<extra></extra>" });

  // --- the table ---

  function numbers(points) {
    const table = byId("numbers"), priced = data.points.some((one) => one.price);
    const columns = [["strategy", nameOf], ["step", (one) => seconds(one.seconds)], [perSecond, (one) => number(one.rate)], ["exposed", (one) => seconds(one.exposed)],
      ["efficiency", (one) => share(one.efficiency)], ["memory", (one) => gigabytes(one.total) + (one.fits ? "" : " (too much)")], ["link", (one) => gigabytes(one.link_bytes)],
      ["bound by", (one) => one.bound], ...priced ? [["per million", (one) => number(one.price, 3)]] : []];
    const add = (row, kind, words, i) => {
      const cell = row.appendChild(document.createElement(kind));
      cell.textContent = words;
      cell.className = i && columns[i][0] !== "bound by" ? "number" : "";
    };
    table.replaceChildren();
    const head = table.createTHead().insertRow(), body = table.createTBody();
    columns.forEach(([title], i) => add(head, "th", title, i));
    const order = [...points].sort((a, b) => b.fits - a.fits || a.seconds - b.seconds);
    order.forEach((one, place) => {
      const row = body.insertRow();
      row.className = one.fits ? place ? "" : "first" : "large";
      columns.forEach(([, words], i) => add(row, "td", words(one), i));
    });
  }

  // --- plots ---

  const legend = { showlegend: true, legend: { orientation: "h", y: -0.2, yanchor: "top" } };
  const sideways = { ...legend, barmode: "stack", margin: { l: 150, r: 10, t: 10, b: 100 } };
  const rows = { automargin: true, autorange: "reversed", type: "category" };

  function bars(id, points, keys, valueOf, axis, words, layout = {}) {
    const names = points.map(nameOf);
    page.draw(id, keys.map((key, i) => ({
      type: "bar", orientation: "h", name: key.replaceAll("_", " "), marker: { color: SHADES[i % SHADES.length] }, x: points.map((one) => valueOf(one, key)), y: names,
      text: points.map((one) => `${plain(nameOf(one))}<br>${key.replaceAll("_", " ")}: ${words(valueOf(one, key))}`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    })), axis, rows, { ...sideways, ...layout });
  }

  function comparison(points) {
    const line = data.limit ? [{ type: "line", x0: data.limit / 1e9, x1: data.limit / 1e9, yref: "paper", y0: 0, y1: 1, line: { color: "#c2416f", dash: "dash", width: 1.5 } }] : [];
    const most = Math.max(data.limit ?? 0, ...points.map((one) => one.total)) / 1e9;
    bars("memory", points, PARTS, (one, key) => one.memory[key] / 1e9, { title: { text: "GB" }, range: [0, 1.05 * most] }, (value) => `${number(value, 3)} GB`, { shapes: line });
    const causes = [...new Set(data.points.flatMap((one) => Object.keys(one.causes)))].filter((key) => points.some((one) => one.causes[key] > 1e-3 * one.seconds));
    bars("causes", points, causes, (one, key) => 1e3 * (one.causes[key] ?? 0), { title: { text: "ms" } }, (value) => seconds(value / 1e3));
  }

  const ranks = () => ({ type: "log", title: { text: "ranks" }, tickvals: [...new Set(data.points.map((one) => one.world))], exponentformat: "none", tickangle: 0 });
  function curve(id, valueOf, title, type, more = []) {
    page.draw(id, [...data.names.map((look, i) => {
      const own = data.points.filter((one) => one.strategy === i);
      return {
        x: own.map((one) => one.world), y: own.map(valueOf), name: plain(look.name), mode: "lines+markers", line: { color: look.color, width: 2 },
        marker: { size: 8, color: look.color, symbol: own.map((one) => one.fits ? look.symbol : `${look.symbol}-open`) }, ...hover(own),
      };
    }), ...more], ranks(), { title: { text: title }, type, ...type === "linear" ? { rangemode: "tozero", ticksuffix: " %" } : {} }, { ...legend, margin: { l: 64, r: 10, t: 10, b: 100 } });
  }

  function scaling() {
    const alone = data.points.map((one) => ({ x: one.world, y: one.rate / one.efficiency })).sort((a, b) => a.x - b.x);
    const ideal = { x: alone.map((one) => one.x), y: alone.map((one) => one.y), mode: "lines", name: "without communication", line: { dash: "dot", width: 1, color: "#7f858f" }, hoverinfo: "skip" };
    curve("rates", (one) => one.rate, perSecond, "log", [ideal]);
    curve("efficiency", (one) => 100 * one.efficiency, "efficiency", "linear");
  }

  function front(id, valueOf, title, places, shows) {
    const joined = (cloud, front) => front.map((place) => cloud[place]).filter(shows);
    const tried = data.tried.filter(shows), fitting = data.points.filter((one) => one.fits && shows(one));
    const best = data.tried.length ? joined(data.tried, data.fronts.tried[places]) : joined(data.points, data.fronts.strategies[places]);
    page.draw(id, [
      { x: tried.map(valueOf), y: tried.map((one) => one.rate), mode: "markers", name: "tried", marker: { size: 4, color: "#7f858f", opacity: 0.6 }, ...hover(tried) },
      { x: fitting.map(valueOf), y: fitting.map((one) => one.rate), mode: "markers", name: "strategies", marker: { size: 9, color: fitting.map((one) => data.names[one.strategy].color), symbol: fitting.map((one) => data.names[one.strategy].symbol) }, ...hover(fitting) },
      { x: best.map(valueOf), y: best.map((one) => one.rate), mode: "lines", name: "front", line: { color: "#c2416f", width: 1.5, shape: "hv" }, ...hover(best) },
    ], { title: { text: title } }, { title: { text: perSecond }, rangemode: "tozero" });
  }

  function gains() {
    const names = Object.keys(data.gains), changes = Object.keys(data.gains[names[0]]);
    page.draw("gains", changes.map((change, i) => ({
      type: "bar", name: change, x: names, y: names.map((name) => 100 * data.gains[name][change]), marker: { color: SHADES[i] },
      text: names.map((name) => `<b>${plain(name)}</b><br>${change}: ${percent(data.gains[name][change])}`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    })), { type: "category" }, { title: { text: "change of the rate" }, ticksuffix: " %", zeroline: true }, { ...legend, barmode: "group", margin: { l: 64, r: 10, t: 10, b: 100 } });
  }

  function timeline() {
    const kinds = [...new Set(data.step.rows.map((row) => row[1]))];
    page.draw("timeline", kinds.map((kind, i) => {
      const own = data.step.rows.filter((row) => row[1] === kind);
      return {
        type: "bar", orientation: "h", name: kind, marker: { color: SHADES[i] }, y: own.map((row) => row[0]), base: own.map((row) => 1e3 * row[3]), x: own.map((row) => 1e3 * (row[4] - row[3])),
        text: own.map((row) => `${plain(row[2])}<br>${seconds(row[4] - row[3])}, from ${seconds(row[3])}`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
      };
    }), { title: { text: "ms" } }, rows, { ...sideways, barmode: "overlay" });
  }

  function weeks() {
    const lost = { useful: "useful", checkpoints: "checkpoints", again: "steps made again", standing: "standing still", missing: "missing hosts" };
    page.draw("weeks", Object.entries(lost).map(([key, name], i) => ({
      type: "bar", name, marker: { color: SHADES[i] }, x: data.weeks.map((one) => one.world.toLocaleString("en")), y: data.weeks.map((one) => 100 * one[key]),
      text: data.weeks.map((one) => `${name}: ${share(one[key])}<br>${one.failures} failures`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    })), { type: "category", title: { text: "ranks" } }, { title: { text: "time" }, ticksuffix: " %", range: [Math.max(0, 100 * Math.min(...data.weeks.map((one) => one.useful)) - 10), 100] },
    { ...legend, barmode: "stack", margin: { l: 64, r: 10, t: 10, b: 100 } });
  }

  // --- the page ---

  function show() {
    const points = chosen();
    numbers(points);
    comparison(points);
    front("front-memory", (one) => one.total / 1e9, "memory (GB)", "memory", (one) => one.world === world());
  }
  function showAll() {
    show();
    scaling();
    if (byId("front-price")) front("front-price", (one) => one.price, `price of a million ${data.unit}`, "price", () => true);
    gains();
    timeline();
    if (byId("weeks")) weeks();
  }

  byId("filter-world").addEventListener("change", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showAll);
  showAll();
})();
