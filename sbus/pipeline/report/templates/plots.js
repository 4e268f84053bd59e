// Draws the plots: what they have in common, in the colours of the reader's screen or of paper.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim();

  const axis = (given) => ({
    automargin: true, zeroline: false, ticks: "outside", ticklen: 4,
    gridcolor: colour("--grid"), linecolor: colour("--line"), tickcolor: colour("--line"),
    tickfont: { size: 12 }, ...given,
    title: { standoff: 8, ...given.title, font: { size: 12, color: colour("--soft") } },
  });

  const layout = (given, narrow) => {
    const made = {
      ...given, title: undefined, autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style().fontFamily, size: 12, color: colour("--ink") },
      margin: { l: 48, r: 12, t: 14, b: 44, ...given.margin },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"),
                    font: { color: colour("--ink") }, namelength: 40 },
    };
    for (const name of Object.keys(given)) {
      if (/^[xy]axis/.test(name)) made[name] = axis(given[name]);
      if (/^xaxis/.test(name) && given[name].type === "date") made[name].nticks = narrow ? 4 : 8;
    }
    made.annotations = (given.annotations || []).map((each) => ({
      ...each, font: { size: 12, color: colour("--ink"), ...each.font },
    }));
    return made;
  };

  const data = (given) => given.map((trace) => trace.type !== "sankey" ? trace : ({
    ...trace, textfont: { color: colour("--ink"), size: 12, shadow: "none" },
  }));

  const draw = () => {
    for (const [name, figure] of Object.entries(figures)) {
      const place = document.getElementById(name);
      const narrow = place.clientWidth < 520;
      Plotly.react(place, data(figure.data), layout(figure.layout, narrow),
                   { responsive: true, displayModeBar: false });
    }
  };

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);
})();
