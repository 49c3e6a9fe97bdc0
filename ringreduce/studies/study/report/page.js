(() => {
  const { byId, data, isOn, number, bytes, rate, percent, plain } = page;
  const DIMENSIONS = ["collective", "transport", "dtype", "wire", "world"];
  const rowsOf = (columns) => columns.facet.map((_, i) =>
    Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])));
  const points = rowsOf(data.points), launches = rowsOf(data.launches);
  const filters = DIMENSIONS.map((name) => byId(`filter-${name}`));
  const boxes = [...document.querySelectorAll("#algorithms input")];

  // --- selection ---

  const facet = () => data.facets.findIndex((one) => one.every((value, i) => value === filters[i].value));
  // Not every combination was measured. This selects the measured one that is most similar to the request.
  function settle(changed) {
    const likeness = (one) => one.reduce((sum, value, i) => sum + (value === filters[i].value ? (i === changed ? 100 : 1) : 0), 0);
    const best = data.facets.reduce((a, b) => likeness(b) > likeness(a) ? b : a);
    best.forEach((value, i) => { filters[i].value = value; });
  }
  const mode = () => byId("filter-mode").value;
  const measured = () => {
    const at = facet();
    return points.filter((one) => one.facet === at && one.mode === mode());
  };
  const fastest = (all) => {
    const best = new Map();
    for (const one of all) best.set(one.nbytes, Math.min(one.median_us, best.get(one.nbytes) ?? Infinity));
    return best;
  };

  // --- plots ---

  function tip(one, best) {
    const lines = [`<b>${plain(data.algorithms[one.algorithm].name)}</b>, ${bytes(one.nbytes)}`];
    const interval = one.low_us === null ? "" : ` [${number(one.low_us)}, ${number(one.high_us)}]`;
    lines.push(`${number(one.median_us)}${interval} µs`, `bus ${rate(one.busbw)}, algorithm ${rate(one.algbw)}`);
    lines.push(`${number(one.median_us / best, 3)} × the fastest${one.place ? `: ${one.place}` : ""}`);
    if (one.predicted_us !== null) lines.push(`predicted ${number(one.predicted_us)} µs (${percent(one.predicted_us / one.median_us - 1)})`);
    lines.push(`${one.launches} launch${one.launches === 1 ? "" : "es"}`);
    return lines.join("<br>");
  }

  // A barrier has no bytes, and a logarithmic axis has no place for 0.
  const place = (nbytes) => Math.max(nbytes, 1);

  // Converts a time to the value on an axis: the time itself, relative to the fastest, or as a bandwidth.
  const conversion = (bandwidth, best) => (us, one) => us === null ? null
    : bandwidth ? one.busbw * one.median_us / us / 1e9
      : byId("scale").value === "relative" ? us / best.get(one.nbytes) : us;

  function line(all, look, convert, best) {
    const y = all.map((one) => convert(one.median_us, one));
    const ends = all.map((one) => [convert(one.low_us, one), convert(one.high_us, one)]);
    const away = (pick) => all.map((_, i) => ends[i][0] === null ? 0 : Math.abs(pick(...ends[i]) - y[i]));
    return {
      x: all.map((one) => place(one.nbytes)), y, mode: "lines+markers", name: look.name,
      line: { color: look.color, width: 2 }, marker: { symbol: look.symbol, size: 7, color: look.color },
      error_y: { visible: isOn("show-intervals"), type: "data", symmetric: false, array: away(Math.max), arrayminus: away(Math.min), thickness: 1.2, width: 3 },
      text: all.map((one) => tip(one, best.get(one.nbytes))), hovertemplate: "%{text}<extra></extra>",
    };
  }

  function predicted(all, look, convert, best) {
    const known = all.filter((one) => one.predicted_us !== null);
    return {
      x: known.map((one) => place(one.nbytes)), y: known.map((one) => convert(one.predicted_us, one)), mode: "lines+markers",
      line: { color: look.color, width: 1.5, dash: "dash" }, marker: { symbol: `${look.symbol}-open`, size: 6, color: look.color },
      text: known.map((one) => tip(one, best.get(one.nbytes))), hovertemplate: "%{text}<extra>predicted</extra>", opacity: 0.8,
    };
  }

  // Marks without a line, for the times of launches or iterations.
  function dots(all, look, convert, symbol, timesOf, wordsOf) {
    const at = new Map(all.map((one) => [one.nbytes, one])), { facet, algorithm } = all[0];
    const own = launches.filter((one) => one.facet === facet && one.algorithm === algorithm && (!mode() || one.mode === mode()));
    const found = own.flatMap((one) => timesOf(one).map((us) => [one, us]));
    return {
      x: found.map(([one]) => place(one.nbytes)), y: found.map(([one, us]) => convert(us, at.get(one.nbytes))), mode: "markers",
      marker: { symbol, size: 5, color: look.color, opacity: 0.45, line: { color: look.color, width: 1 } },
      text: found.map(([one, us]) => `<b>${plain(look.name)}</b>, ${bytes(one.nbytes)}<br>launch ${one.launch}${one.mode ? `, ${one.mode} mode` : ""}<br>${wordsOf(one, us)}`),
      hovertemplate: "%{text}<extra></extra>",
    };
  }
  const launchWords = (one, us) => `${number(us)} µs, quartiles ${number(one.q1_us)} and ${number(one.q3_us)}<br>`
    + `${number(one.min_us)} to ${number(one.max_us)} µs in ${one.iterations} iterations, after ${one.warmup} of warm-up`;
  const outlierWords = (one, us) => `outlier: ${number(us)} µs`;
  const outliersOf = (one) => one.outliers_us.split(" ").filter(Boolean).map(Number);

  function traces(all, bandwidth) {
    const best = fastest(all), convert = conversion(bandwidth, best);
    return boxes.filter((box) => box.checked).flatMap((box) => {
      const look = data.algorithms[box.value];
      const own = all.filter((one) => one.algorithm === Number(box.value) && (!bandwidth || one.busbw > 0)).sort((a, b) => a.nbytes - b.nbytes);
      if (!own.length) return [];
      const found = [line(own, look, convert, best)];
      if (isOn("show-predictions") && own.some((one) => one.predicted_us !== null)) found.push(predicted(own, look, convert, best));
      if (isOn("show-launches")) found.push(dots(own, look, convert, "circle-open", (one) => [one.time_us], launchWords));
      if (isOn("show-outliers")) found.push(dots(own, look, convert, "x-thin", outliersOf, outlierWords));
      return found;
    });
  }

  function plot(id, title, all, bandwidth) {
    const sizes = [...new Set(all.map((one) => one.nbytes))].sort((a, b) => a - b);
    const step = Math.ceil(sizes.length / (byId(id).clientWidth > 520 ? 9 : 6));
    const ticks = sizes.filter((_, i) => i % step === 0);
    const lines = traces(all, bandwidth), heights = lines.flatMap((one) => one.y);
    const isLong = Math.max(...heights) > 100 * Math.min(...heights);
    page.draw(id, lines,
      { type: "log", title: { text: "size of the buffer" }, tickvals: ticks.map(place), ticktext: ticks.map(bytes), tickangle: 0 },
      { type: "log", title: { text: title }, exponentformat: "none", separatethousands: true, dtick: isLong ? 1 : "D2" },
      { uirevision: facet() });
  }

  // --- the table ---

  function numbers(all) {
    const table = byId("numbers"), best = fastest(all), add = (row, words, kind, look) => {
      const cell = row.appendChild(document.createElement(kind));
      cell.textContent = words;
      cell.className = look;
    };
    table.replaceChildren();
    const head = table.createTHead().insertRow(), body = table.createTBody();
    for (const [title, look] of [["size", "number"], ["algorithm", ""], ["", ""], ["median µs", "number"], ["interval", "number"], ["× fastest", "number"],
      ["bus", "number"], ["algorithm", "number"], ["predicted µs", "number"], ["error", "number"], ["launches", "number"]]) add(head, title, "th", look);
    const shown = all.filter((one) => boxes[one.algorithm].checked);
    for (const one of shown.sort((a, b) => a.nbytes - b.nbytes || a.median_us - b.median_us)) {
      const row = body.insertRow(), say = (words) => add(row, words, "td", "number");
      if (one.place === "wins" || one.place === "ties") row.className = "first";
      say(bytes(one.nbytes));
      add(row, data.algorithms[one.algorithm].name, "td", "");
      add(row, one.place, "td", "");
      say(number(one.median_us));
      say(one.low_us === null ? "—" : `${number(one.low_us)} – ${number(one.high_us)}`);
      say(number(one.median_us / best.get(one.nbytes), 3));
      say(rate(one.busbw));
      say(rate(one.algbw));
      say(number(one.predicted_us));
      say(one.predicted_us === null ? "—" : percent(one.predicted_us / one.median_us - 1));
      say(String(one.launches));
    }
  }

  // --- saving pictures ---

  function offer(figure) {
    const button = figure.appendChild(document.createElement("button"));
    button.textContent = "save as SVG";
    button.addEventListener("click", () => {
      const link = document.createElement("a"), name = figure.querySelector("figcaption")?.textContent ?? "winners";
      link.href = URL.createObjectURL(new Blob([figure.querySelector("svg").outerHTML], { type: "image/svg+xml" }));
      link.download = `${figure.dataset.collective}-${name}.svg`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
  }

  // --- the page ---

  function show() {
    const chosen = { mode: mode(), ...Object.fromEntries(DIMENSIONS.map((name, i) => [name, filters[i].value])) };
    for (const one of document.querySelectorAll("[data-collective]")) one.hidden = Object.entries(one.dataset).some(([name, value]) => chosen[name] !== value);
    const all = measured(), there = new Set(all.map((one) => one.algorithm));
    for (const box of boxes) box.parentElement.hidden = !there.has(Number(box.value));
    plot("time", byId("scale").value === "relative" ? "time relative to the fastest median" : "time (µs)", all, false);
    plot("bandwidth", "bus bandwidth (GB/s)", all, true);
    numbers(all);
  }

  filters.forEach((one, i) => one.addEventListener("change", () => { settle(i); show(); }));
  for (const one of document.querySelectorAll("#filter-mode, #algorithms input, #shown input, #scale")) one.addEventListener("change", show);
  for (const [id, on] of [["all", true], ["none", false]]) byId(id).addEventListener("click", () => { for (const box of boxes) box.checked = on; show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  document.querySelectorAll("figure:has(svg)").forEach(offer);
  settle(0);
  show();
})();
