// What every page does: unpack plotly.js, draw the figures, sort and filter tables, hand out data.
(() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("pictures").textContent);
  const touch = matchMedia("(hover: none)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  const inSpace = { ...config, modeBarButtons: [["toImage", "resetCameraDefault3d"]] };

  // Plotly.js lies in the page compressed. Its source is run as one inline script, which the
  // page's policy allows by its hash and no other.
  const unpack = async () => {
    const packed = Uint8Array.from(
      atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };

  // Colours are names of the style sheet's variables until here: look them up in today's theme.
  const themed = (value, key, style) => {
    if (Array.isArray(value)) return value.map((item) => themed(item, key, style));
    if (value !== null && typeof value === "object")
      return Object.fromEntries(
        Object.entries(value).map(([name, item]) => [name, themed(item, name, style)]));
    const name = /color$/.test(key) && /^var\((--[a-z-]+)\)$/.exec(value);
    return name ? style.getPropertyValue(name[1]).trim() : value;
  };

  const plot = (key) => document.getElementById(`figure-${key}`);
  const chosen = (key) =>
    Number(document.querySelector(`input[name="view-${key}"]:checked`)?.value ?? 0);

  // From farther away where it is narrow: a camera sees as much from top to bottom at any width.
  const seenFrom = (place, { x, y, z }) => {
    const away = Math.max(1, 460 / place.clientWidth);
    return { x: away * x, y: away * y, z: away * z };
  };

  const draw = async ({ key, views }) => {
    const place = plot(key), style = getComputedStyle(root);
    if (!place.offsetParent) return;  // folded away: it is drawn when it is opened
    const { data, layout } = views[chosen(key)];
    const now = themed(layout, "", style);
    if (touch) now.dragmode = false;  // a finger scrolls the page, it does not zoom
    if (touch && now.scene) now.scene.dragmode = false;
    if (now.scene)
      now.scene.camera = place.layout?.scene?.camera
        ?? { eye: seenFrom(place, now.scene.camera.eye) };
    await Plotly.react(place, themed(data, "", style), now, now.scene ? inSpace : config);
    const pick = document.querySelector(`select[data-picks="${key}"]`);
    if (pick && !place.dataset.picks) {
      place.dataset.picks = "yes";
      place.on("plotly_click", ({ points }) => {
        pick.selectedIndex = Number(points[0].x) - 1;
        pick.dispatchEvent(new Event("change"));
      });
    }
  };
  const drawAll = () => Promise.all(figures.map(draw));

  for (const figure of figures) {
    for (const choice of document.getElementsByName(`view-${figure.key}`))
      choice.addEventListener("change", () => draw(figure));
    // Turning by keyboard or finger: the angle of the camera around the middle.
    const turn = document.querySelector(`input[data-turns="${figure.key}"]`);
    turn?.addEventListener("input", () => {
      const angle = turn.value * Math.PI / 180;
      const eye = { x: 2.05 * Math.sin(angle), y: -2.05 * Math.cos(angle), z: 1 };
      const place = plot(figure.key);
      Plotly.relayout(place, { "scene.camera.eye": seenFrom(place, eye) });
    });
  }
  for (const fold of document.querySelectorAll("details"))
    fold.addEventListener("toggle", () => {
      if (fold.open) for (const figure of figures)
        if (fold.contains(plot(figure.key))) draw(figure);
    });

  // The numbers of the layer that is picked, from its row in the table (as it came, before sorts).
  for (const pick of document.querySelectorAll("select[data-picks]")) {
    const rows = [...document.getElementById(pick.dataset.picks).tBodies[0].rows];
    const fields = document.querySelectorAll("#picked-layer dd");
    pick.addEventListener("change", () => fields.forEach((field, place) => {
      field.textContent = rows[pick.selectedIndex].cells[place + 1].textContent;
    }));
  }

  // Tables that sort and filter.
  const worth = (row, column) => {
    const value = row.cells[column]?.dataset.value;
    return value === undefined || value === "" ? null : Number(value);
  };
  for (const table of document.querySelectorAll("table[data-sorts]")) {
    const body = table.tBodies[0], given = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    // Numbers from the largest down, names from A on; a second time the other way around, and a
    // third time as the table came. Rows without a number come last.
    const sort = (column, backwards) => {
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (backwards === null) { body.append(...given); return; }
      const up = (column === 0) !== backwards;
      heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
      const name = (row) => row.cells[0].textContent.trim();
      const ranked = given.filter((row) => column === 0 || worth(row, column) !== null);
      ranked.sort((a, b) => column === 0
        ? name(a).localeCompare(name(b)) : worth(b, column) - worth(a, column));
      if (backwards) ranked.reverse();
      body.append(...ranked, ...given.filter((row) => !ranked.includes(row)));
    };
    for (const button of table.querySelectorAll("button.sort")) {
      const head = button.closest("th"), column = heads.indexOf(head);
      const first = column === 0 ? "ascending" : "descending";
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        sort(column, now === null ? false : now === first ? true : null);
      });
    }
    // Other numbers in the same rows: the order that was asked for holds.
    table.addEventListener("refilled", () => {
      const column = heads.findIndex((head) => head.ariaSort);
      const first = column === 0 ? "ascending" : "descending";
      if (column >= 0) sort(column, heads[column].ariaSort !== first);
    });
    const orders = document.querySelector(`select[data-orders="${table.id}"]`);
    orders?.addEventListener("change", () =>
      sort(Number(orders.value), orders.value === "" ? null : false));
    const filters = [...document.querySelectorAll(`[data-filters="${table.id}"]`)];
    const count = document.querySelector(`[data-counts="${table.id}"]`);
    const filter = () => {
      const [words, family, marks] = filters.map((field) =>
        field.type === "checkbox" ? field.checked : field.value.toLowerCase().trim());
      let left = 0;
      for (const row of given) {
        const fits = (!words || row.textContent.toLowerCase().includes(words))
          && (!family || row.dataset.family === family) && (!marks || row.dataset.invariant);
        row.hidden = !fits;
        left += fits;
      }
      if (count) count.textContent = `${left} of ${given.length}`;
    };
    filters.forEach((field) => field.addEventListener("input", filter));
    if (filters.length) filter();
  }

  // Data as CSV, made in the page.
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    // A spreadsheet would run such a text; numbers stay numbers.
    if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const save = (name, rows) => {
    const text = rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const rowsOf = ({ data }, names) => {
    const rows = [["series", ...names, "minus", "plus"]];
    for (const { name, x, y, z, customdata, error_y: error } of data) {
      if (Array.isArray(z?.[0]))  // a surface: its values, not their logarithms
        z.forEach((line, i) => line.forEach((value, j) =>
          rows.push([name, x[j], y[i], customdata?.[i]?.[j] ?? value])));
      else (y ?? x).forEach((value, i) => {
        const plus = error?.array?.[i], minus = (error?.arrayminus ?? error?.array)?.[i];
        const up = z ? [customdata?.[i] ?? z[i]] : names.length > 2 ? [""] : [];
        rows.push([name, x[i], y?.[i], ...up, minus, plus]);
      });
    }
    return rows;
  };
  document.addEventListener("click", ({ target }) => {
    const key = target.dataset?.csv, table = target.dataset?.csvTable;
    if (key) {
      const figure = figures.find((its) => its.key === key);
      save(key, rowsOf(figure.views[chosen(key)], figure.columns));
    }
    if (table) {
      const { tHead, tBodies } = document.getElementById(table);
      const words = (its) => (its.dataset.csv ?? its.innerText).replace(/\s+/g, " ").trim();
      save(table, [...tHead.rows, ...tBodies[0].rows].map((row) => [...row.cells].map(words)));
    }
  });

  const undrawn = (why) => {
    for (const { key } of figures) plot(key).textContent = why;
    root.dataset.drawn = "no";
  };
  if (typeof DecompressionStream === "undefined") {
    undrawn("This browser cannot unpack the figures: any browser of 2023 or later can.");
    return;
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; drawAll(); });
  addEventListener("afterprint", () => { delete root.dataset.theme; drawAll(); });
  unpack().then(() => document.dispatchEvent(new Event("unpacked"))).then(drawAll).then(
    () => { root.dataset.drawn = "yes"; },
    (error) => { undrawn("The figures could not be drawn."); throw error; });
})();
