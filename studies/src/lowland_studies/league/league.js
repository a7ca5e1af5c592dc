// The league table: coefficients over the networks that are chosen, and the scatter behind a row.
(() => {
  "use strict";
  const { settings, choices, gaps, titles, values, entries } =
    JSON.parse(document.getElementById("league").textContent);
  const names = Object.keys(settings), count = settings[names[0]].length;
  const every = Array.from({ length: count }, (_, i) => i);
  const table = document.getElementById("measures");
  const rows = [...table.tBodies[0].rows];  // as they came: entry by entry
  const pick = (name) => document.querySelector(`select[data-${name}]`);
  const filters = [...document.querySelectorAll("select[data-setting]")];

  // Pairs of networks that differ in one setting alone, with its name.
  const alone = [];
  for (let i = 0; i < count; i++)
    for (let j = i + 1; j < count; j++) {
      const differ = names.filter((name) => settings[name][i] !== settings[name][j]);
      if (differ.length === 1 && differ[0] !== "seed") alone.push([i, j, differ[0]]);
    }

  const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
  const sign = (x, y, i, j) => Math.sign(x[i] - x[j]) * Math.sign(y[i] - y[j]);

  const kendall = (x, y, networks) => {
    let sum = 0, pairs = 0;
    networks.forEach((i, place) => {
      for (let other = 0; other < place; other++, pairs++) sum += sign(x, y, i, networks[other]);
    });
    return sum / pairs;
  };
  // The signs of all pairs, by what is said of each.
  const grouped = (x, y, networks, key) => {
    const among = new Set(networks), signs = {};
    for (const [i, j, name] of alone)
      if (among.has(i) && among.has(j)) (signs[key(name, i, j)] ??= []).push(sign(x, y, i, j));
    return signs;
  };
  // The mean over settings of the mean over their pairs; a data set is not for the one who trains
  // to choose.
  const granulated = (x, y, networks) => {
    const { data, ...signs } = grouped(x, y, networks, (name) => name);
    return mean(Object.values(signs).map(mean));
  };
  // The lowest mean over pairs that differ in two values of one setting, five pairs or more.
  const worst = (x, y, networks) => {
    const environments = grouped(x, y, networks, (name, i, j) => `${name} ` + [i, j]
      .map((k) => settings[name][k]).sort((a, b) => a - b).map((v) => choices[name][v])
      .join(" or "));
    return Object.entries(environments).filter(([, signs]) => signs.length >= 5)
      .map(([where, signs]) => ({ value: mean(signs), where }))
      .reduce((lowest, one) => one.value < lowest.value ? one : lowest,
        { value: Infinity, where: "" });
  };
  const pearson = (x, y, networks) => {
    const own = networks.map((i) => x[i]), other = networks.map((i) => y[i]);
    const a = mean(own), b = mean(other);
    const product = (u, c, v, d) => u.reduce((sum, value, i) => sum + (value - c) * (v[i] - d), 0);
    return product(own, a, other, b)
      / Math.sqrt(product(own, a, own, a) * product(other, b, other, b));
  };
  // Places in the order of size; equal numbers share the mean of theirs.
  const ranked = (x, networks) => {
    const order = [...networks].sort((i, j) => x[i] - x[j]), ranks = [];
    for (let first = 0; first < order.length;) {
      let last = first;
      while (last + 1 < order.length && x[order[last + 1]] === x[order[first]]) last++;
      for (let place = first; place <= last; place++) ranks[order[place]] = (first + last) / 2;
      first = last + 1;
    }
    return ranks;
  };
  const spearman = (x, y, networks) => pearson(ranked(x, networks), ranked(y, networks), networks);
  const anew = { granulated, kendall, spearman, pearson };

  const chosen = () => every.filter((i) => filters.every((field) =>
    field.value === "" || settings[field.dataset.setting][i] === Number(field.value)));

  const put = (cell, value, text) => {
    const known = value !== null && Number.isFinite(value);
    cell.dataset.value = known ? value : "";
    cell.textContent = known ? text : "–";
  };
  const short = (value) => value.toFixed(2).replace("-", "−");
  const withInterval = (cell, { value, low, high }, factor = 1) => {
    put(cell, value, value === null ? "" : short(factor * value));
    if (value === null) return;
    const span = document.createElement("span");
    span.className = "parts";
    span.textContent = `[${short(factor * low)}, ${short(factor * high)}]`;
    cell.append(span);
  };

  // Every cell of the table for the networks that are chosen: of all of them as it was computed
  // with its interval, of some of them anew.
  const fill = () => {
    const gap = pick("gap").value, y = gaps[gap], networks = chosen();
    const whole = networks.length === count;
    document.getElementById("chosen").textContent = `${networks.length} of ${count} networks`;
    entries.forEach((entry, place) => {
      const cells = Object.fromEntries([...rows[place].querySelectorAll("[data-column]")]
        .map((cell) => [cell.dataset.column, cell]));
      const rank = entry.ranks[gap], raw = values[entry.name];
      const x = raw.map((value) => value === null ? null : entry.sign * value);
      const measured = networks.filter((i) => x[i] !== null);
      for (const [name, coefficient] of Object.entries(anew)) {
        if (whole) { withInterval(cells[name], rank[name]); continue; }
        const value = measured.length > 1 ? coefficient(x, y, measured) : NaN;
        put(cells[name], value, short(value));
      }
      put(cells.models, measured.length, String(measured.length));
      const lowest = whole ? { value: rank.worst, where: rank.worst_where } : worst(x, y, measured);
      put(cells.worst, lowest.value, lowest.value === null ? "" : short(lowest.value));
      cells.worst.title = lowest.where;
      put(cells.information, whole ? rank.information : null,
        rank.information === null ? "" : rank.information.toFixed(3));
      if (whole) withInterval(cells.picks, entry.picked, 100);
      else put(cells.picks, null, "");
    });
    table.dispatchEvent(new Event("refilled"));
  };

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const entry = entries[pick("shown").value], by = pick("coloured").value;
    const gap = pick("gap").value, x = values[entry.name], y = gaps[gap];
    const networks = chosen().filter((i) => x[i] !== null);
    const kinds = ["--flat", "--sharp", "--good", "--mean", "--neutral", "--bad"].map(colour);
    const shapes = ["circle", "diamond", "square", "triangle-up", "cross", "x"];
    const told = (i) => names.map((name) =>
      `${name.replace("_", " ")} ${choices[name][settings[name][i]]}`).join("<br>");
    const data = choices[by].map((value, kind) => {
      const own = networks.filter((i) => settings[by][i] === kind);
      return {
        type: "scatter", mode: "markers", name: `${by.replace("_", " ")} ${value}`,
        x: own.map((i) => x[i]), y: own.map((i) => y[i]), text: own.map(told),
        hovertemplate: "%{x:.4g}, %{y:.4g}<br>%{text}<extra></extra>",
        marker: { color: kinds[kind % 6], symbol: shapes[kind % 6], size: 7, opacity: 0.75 },
      };
    }).filter((trace) => trace.x.length);
    const across = networks.map((i) => x[i]);
    const wide = Math.min(...across) > 0 && Math.max(...across) > 20 * Math.min(...across);
    const axis = (title) => ({
      title: { text: title }, gridcolor: colour("--line"), linecolor: colour("--line"),
      zerolinecolor: colour("--line"), automargin: true,
    });
    document.getElementById("scatter-title").textContent = `${entry.title} and the ${titles[gap]}`;
    return Plotly.react("scatter", data, {
      xaxis: { ...axis(entry.title), type: wide ? "log" : "linear" },
      yaxis: axis(titles[gap]),
      font: { color: colour("--ink") }, paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)", margin: { t: 10, r: 10 },
      showlegend: true, legend: { orientation: "h", y: -0.25 }, hovermode: "closest",
      modebar: { bgcolor: "rgba(0,0,0,0)" },
    }, { responsive: true, displaylogo: false, displayModeBar: "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
  };

  fill();
  const redraw = () => { if (typeof Plotly !== "undefined") draw(); };
  for (const field of [...filters, pick("gap")])
    field.addEventListener("change", () => { fill(); redraw(); });
  for (const field of [pick("shown"), pick("coloured")]) field.addEventListener("change", redraw);
  for (const button of table.querySelectorAll("button[data-shows]"))
    button.addEventListener("click", () => {
      pick("shown").value = button.dataset.shows;
      redraw();
      document.getElementById("scatter-title").scrollIntoView({ block: "nearest" });
    });
  document.addEventListener("unpacked", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
