"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const root = document.documentElement;
const PRINTED_PX = 680;

function colour(name) {
  return getComputedStyle(root).getPropertyValue("--" + name).trim();
}

/* The colours that follow the page: everything but the marks themselves. */
function themed(layout) {
  const look = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft"), activecolor: colour("ink") },
  };
  const all = { ...layout, ...look, legend: { ...layout.legend, itemclick: false, itemdoubleclick: false } };
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis/.test(key)) {
      all[key] = { ...layout[key], gridcolor: colour("grid"), linecolor: colour("line"), tickcolor: colour("line") };
    }
  }
  return root.classList.contains("printed") ? { ...all, width: PRINTED_PX } : all;
}

const config = {
  displaylogo: false, responsive: true, plotlyServerURL: "", topojsonURL: "", showSendToCloud: false, showEditInChartStudio: false,
  modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
};

const place = (figure) => document.getElementById("figure-" + figure.key);
const draw = (figure) => Plotly.react(place(figure), figure.data, themed(figure.layout), config);
const drawAll = () => figures.forEach(draw);

/* One after another, so that the page can be read and scrolled meanwhile. */
function drawInTurn(rest) {
  if (!rest.length) return;
  draw(rest[0]);
  setTimeout(() => drawInTurn(rest.slice(1)), 0);
}

/* Paper is light and narrow, whatever the screen is, and nobody can unfold what is folded there. */
const unfolded = new Set();
function onPaper(begins) {
  root.classList.toggle("printed", begins);
  if (begins) document.querySelectorAll("details:not([open])").forEach((one) => unfolded.add(one));
  for (const one of unfolded) one.open = begins;
  if (!begins) unfolded.clear();
  drawAll();
  if (!begins) for (const figure of figures) Plotly.Plots.resize(place(figure));
}

/* The part of the time line in which a bucket ran. */
function lookAt(bucket) {
  const div = document.getElementById("figure-timeline");
  const ends = (div?.data ?? []).flatMap((trace) => (trace.customdata ?? []).flatMap((key, at) =>
    key === bucket ? [trace.base[at], trace.base[at] + trace.x[at]] : []));
  if (!ends.length) return;
  const [begin, end] = [Math.min(...ends), Math.max(...ends)];
  const mark = { type: "rect", xref: "x", yref: "paper", x0: begin, x1: end, y0: 0, y1: 1, layer: "below", line: { width: 0 } };
  const room = (end - begin) / 3;
  Plotly.relayout(div, {
    "xaxis.range": [begin - room, end + room], shapes: [{ ...mark, fillcolor: "rgba(224,164,88,0.18)" }],
  });
}

/* The section that is read, in the contents. */
function follow() {
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...document.querySelectorAll("section[id]")].filter((one) => links.has(one.id));
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target);
    const first = sections.find((one) => seen.has(one));
    for (const one of sections) links.get(one.id).toggleAttribute("aria-current", one === first);
  }, { rootMargin: "-10% 0px -60% 0px" });
  sections.forEach((one) => watch.observe(one));
}

/* A button that copies a command or a setting. Where the clipboard is closed, the text is selected instead. */
function copyable(box) {
  const words = box.textContent;
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(words);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(box);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const both = Object.assign(document.createElement("div"), { className: "copyable" });
  box.replaceWith(both);
  both.append(box, button);
}

/* A number stays on one line with its unit, but for what may be copied. */
function unbroken(top) {
  const unit = /(?<=\d) (?=(?:%|ns|µs|ms|s|min|h|B|[kMGT]B|[kMGT]?B\/s)(?![\w/]))/g;
  const texts = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode;
    if (!one.parentElement.closest("pre")) one.data = one.data.replace(unit, "\u00a0");
  }
}

unbroken(document.getElementById("main"));
drawInTurn(figures);
document.querySelectorAll("pre").forEach(copyable);
follow();
for (const box of document.querySelectorAll(".scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-bucket]");
  if (link) lookAt(link.dataset.bucket);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
window.addEventListener("beforeprint", () => onPaper(true));
window.addEventListener("afterprint", () => onPaper(false));
