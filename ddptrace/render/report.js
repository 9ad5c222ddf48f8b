"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/* The colours that follow the page: everything but the marks themselves. */
function themed(layout) {
  const look = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("line"), activecolor: colour("soft") },
  };
  const all = { ...layout, ...look };
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis/.test(key)) {
      all[key] = { ...layout[key], gridcolor: colour("grid"), linecolor: colour("line"), tickcolor: colour("line") };
    }
  }
  return all;
}

const config = {
  displaylogo: false, responsive: true, plotlyServerURL: "", topojsonURL: "", showSendToCloud: false, showEditInChartStudio: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendDataToCloud"],
};

function drawAll(how) {
  for (const figure of figures) how(document.getElementById("figure-" + figure.key), figure);
}

drawAll((div, figure) => Plotly.newPlot(div, figure.data, themed(figure.layout), config));
dark.addEventListener("change", () => drawAll((div, figure) => Plotly.react(div, figure.data, themed(figure.layout), config)));
