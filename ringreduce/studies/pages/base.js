"use strict";
// What the scripts of all pages share: the data, words for numbers, and the look of plots.
const page = (() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const isOn = (id) => byId(id)?.checked ?? false;

  // --- words ---

  const number = (value, digits = 4) => value === null ? "—" : value >= 10 ** digits
    ? Math.round(value).toLocaleString("en") : value.toPrecision(digits);
  const bytes = (count) => {
    const power = count ? Math.min(3, Math.floor(Math.log2(count) / 10)) : 0;
    return `${Number((count / 1024 ** power).toPrecision(3))} ${["B", "KiB", "MiB", "GiB"][power]}`;
  };
  const rate = (perSecond) => perSecond >= 1e8 ? `${number(perSecond / 1e9)} GB/s` : `${number(perSecond / 1e6)} MB/s`;
  const percent = (part) => `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)} %`;
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // Plotly interprets tags in labels

  // --- plots ---

  const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Draws a plot. The axes and the layout given are added to the common ones; the title of y names saved pictures.
  function draw(id, traces, x, y, layout = {}) {
    const axis = { gridcolor: shade("--grid"), linecolor: shade("--line"), zeroline: false };
    Plotly.react(id, traces, {
      xaxis: { ...axis, ...x }, yaxis: { ...axis, ...y },
      font: { family: "system-ui, sans-serif", size: 12, color: shade("--text") }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { align: "left", bgcolor: shade("--panel"), font: { color: shade("--text") } },
      margin: { l: 64, r: 10, t: 10, b: 46 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: shade("--line"), activecolor: shade("--pale") }, showlegend: false, hovermode: "closest", ...layout,
    }, { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: ["select2d", "lasso2d"], toImageButtonOptions: { format: "svg", filename: y.title?.text ?? id } });
  }

  return { byId, data, isOn, number, bytes, rate, percent, plain, draw };
})();
