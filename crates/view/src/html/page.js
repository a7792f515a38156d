// The scripts of the page: they sort and filter tables and zoom the address map.
"use strict";

// Rows of a long table that are in the document at a time.
const PAGE = 200;

// Tables: a click on a heading sorts, the largest number or the first word first; a second click
// reverses the order.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = turn(heads, head);
      if (table.sortRows) table.sortRows(column, sign);
      else sort(table, column, sign);
    });
  });
  const data = table.parentElement.parentElement.querySelector(":scope > script");
  if (data) addPages(table, heads, JSON.parse(data.textContent));
  else if (body.rows.length > 15) addFilter(table, body);
  body.addEventListener("mouseover", (event) => exactSize(event, heads));
}

// Marks the heading that is sorted by; 1 is ascending.
function turn(heads, head) {
  const first = head.classList.contains("words") ? "ascending" : "descending";
  const second = first === "ascending" ? "descending" : "ascending";
  const order = head.getAttribute("aria-sort") === first ? second : first;
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", order);
  return order === "ascending" ? 1 : -1;
}

function sort(table, column, sign) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[column];
    return { row, number: cell.dataset.v === undefined ? NaN : Number(cell.dataset.v), text: cell.textContent };
  });
  keyed.sort((a, b) => compare(a, b, sign));
  body.append(...keyed.map((item) => item.row));
}

// Cells without a number stay last in either order.
function compare(a, b, sign) {
  const missing = Number.isNaN(a.number) - Number.isNaN(b.number);
  if (missing !== 0) return missing;
  if (!Number.isNaN(a.number)) return sign * (a.number - b.number);
  return sign * (a.text < b.text ? -1 : a.text > b.text ? 1 : 0);
}

function addFilter(table, body) {
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = `Filter ${body.rows.length} rows`;
  input.setAttribute("aria-label", input.placeholder);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  table.parentElement.before(input);
}

// A long table: its rows are data, of which one page is in the document.
function addPages(table, heads, data) {
  const body = table.tBodies[0];
  const columns = data.columns.map(values);
  const classes = heads.map((head) => head.className);
  let order = Array.from({ length: data.rows }, (_, row) => row);
  let shown = order;
  let first = 0;

  const bar = document.createElement("div");
  bar.className = "pages zoom";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = `Filter ${data.rows} rows`;
  input.setAttribute("aria-label", input.placeholder);
  const place = document.createElement("output");
  bar.append(input);
  for (const [sign, label, step] of [["‹", "Rows before", -PAGE], ["›", "Rows after", PAGE]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = sign;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => {
      if (first + step >= 0 && first + step < shown.length) draw(first + step);
    });
    bar.append(button);
  }
  bar.append(place);
  table.parentElement.before(bar);

  function draw(from) {
    first = from;
    const rows = shown.slice(first, first + PAGE);
    body.replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      columns.forEach((cells, column) => line.append(element(cells[row], classes[column])));
      return line;
    }));
    place.textContent = shown.length === 0 ? "no rows" : `${first + 1}–${first + rows.length} of ${shown.length}`;
  }

  function filter() {
    const wanted = input.value.toLowerCase();
    const holds = (row) => columns.some((cells) => cells[row].text.toLowerCase().includes(wanted));
    shown = wanted ? order.filter(holds) : order;
    draw(0);
  }

  let waiting = 0;
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 150);
  });
  table.sortRows = (column, sign) => {
    const cells = columns[column];
    order = order.slice().sort((a, b) => compare(cells[a], cells[b], sign));
    filter();
  };
  draw(0);
}

// The cells of a column, row by row; rows that are alike share one.
function values(column) {
  if (column.kind === "address") {
    let address = 0n;
    return column.steps.split(" ").map((step) => {
      address += step.startsWith("-") ? -BigInt("0x" + step.slice(1)) : BigInt("0x" + step);
      return { text: address.toString(16), number: Number(address), key: address.toString() };
    });
  }
  const cells = column.cells.map((cell) => {
    if (typeof cell === "number") {
      return { text: column.kind === "bytes" ? human(cell) : String(cell), number: cell, key: String(cell) };
    }
    if (typeof cell === "string") return { text: cell, number: NaN };
    if (Array.isArray(cell)) return { text: cell[0], number: cell[1], key: String(cell[1]) };
    return { text: cell.mark ?? cell.picture, number: NaN, why: cell.why, picture: cell.picture !== undefined };
  });
  return column.numbers ? column.numbers.map((number) => cells[number]) : cells;
}

function element(cell, name) {
  const td = document.createElement("td");
  if (name) td.className = name;
  if (cell.key !== undefined) td.dataset.v = cell.key;
  if (cell.why === undefined && !cell.picture) {
    td.textContent = cell.text;
    return td;
  }
  const inner = document.createElement(cell.picture ? "code" : "abbr");
  inner.textContent = cell.text;
  if (cell.why !== undefined) inner.title = cell.why;
  td.append(inner);
  return td;
}

function exactSize(event, heads) {
  const cell = event.target.closest("td[data-v]");
  if (cell && !cell.title && heads[cell.cellIndex].dataset.unit === "bytes") {
    cell.title = `${Number(cell.dataset.v).toLocaleString("en")} bytes`;
  }
}

// The address map: wheel, buttons, keys and drag choose the part of a cluster that is drawn.
// Positions are computed from byte offsets each time: the scale of a drawing has too few digits.
const WIDTH = 1000;
// Minimum number of bytes across a drawing.
const CLOSEST = 16384;

for (const figure of document.querySelectorAll(".cluster")) {
  const svg = figure.querySelector("svg");
  const range = figure.querySelector("code");
  const shown = figure.querySelector("figcaption span");
  const words = document.createElement("output");
  const base = BigInt("0x" + figure.dataset.start);
  const span = Number(figure.dataset.span);
  const cells = [...svg.querySelectorAll("g")].map((g) => ({
    g, from: Number(g.dataset.from), to: Number(g.dataset.to), rects: [...g.querySelectorAll("rect")],
  }));
  let from = 0;
  let size = span;
  let waiting = false;

  function show(start, length) {
    size = Math.min(span, Math.max(Math.min(span, CLOSEST), length));
    from = Math.min(span - size, Math.max(0, start));
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(draw);
  }

  function draw() {
    waiting = false;
    const sliver = (0.6 * WIDTH) / Math.max(1, svg.clientWidth);
    for (const cell of cells) {
      const seen = cell.to > from && cell.from < from + size;
      cell.g.style.display = seen ? "" : "none";
      if (!seen) continue;
      const left = ((Math.max(cell.from, from) - from) / size) * WIDTH;
      const right = ((Math.min(cell.to, from + size) - from) / size) * WIDTH;
      for (const rect of cell.rects) {
        rect.setAttribute("x", left);
        rect.setAttribute("width", Math.max(sliver, right - left));
      }
    }
    const start = base + BigInt(Math.floor(from));
    const end = base + BigInt(Math.ceil(from + size));
    range.textContent = `${start.toString(16)}-${end.toString(16)}`;
    shown.textContent = human(size);
  }

  function zoom(factor, at = 0.5) {
    const length = Math.min(span, Math.max(Math.min(span, CLOSEST), size * factor));
    show(from + (size - length) * at, length);
  }

  const place = (event) => (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth;
  const keys = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    "0": () => show(0, span),
    ArrowLeft: () => show(from - size / 8, size),
    ArrowRight: () => show(from + size / 8, size),
  };

  svg.setAttribute("tabindex", "0");
  svg.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(from + (event.deltaX / svg.clientWidth) * size, size);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event));
  }, { passive: false });

  let held = null;
  svg.addEventListener("pointerdown", (event) => {
    held = { at: event.clientX, from, moved: false };
  });
  svg.addEventListener("pointermove", (event) => {
    if (!held) return;
    const way = event.clientX - held.at;
    if (!held.moved && Math.abs(way) > 3) {
      held.moved = true;
      svg.setPointerCapture(event.pointerId);
    }
    if (held.moved) show(held.from - (way / svg.clientWidth) * size, size);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, (event) => {
      if (held && !held.moved && end === "pointerup") choose(event.target.closest("g"));
      held = null;
    });
  }

  // A tap or click keeps what hovering shows: fingers do not hover.
  function choose(g) {
    svg.querySelector(".chosen")?.classList.remove("chosen");
    g?.classList.add("chosen");
    words.textContent = g ? g.querySelector("title").textContent.split("\n").join("  ") : "";
  }

  const buttons = document.createElement("span");
  buttons.className = "zoom";
  for (const [sign, label, key] of [["+", "Zoom in", "+"], ["−", "Zoom out", "-"], ["‹", "Left", "ArrowLeft"], ["›", "Right", "ArrowRight"], ["Whole", "Show the whole cluster", "0"]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = sign;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", keys[key]);
    buttons.append(button);
  }
  figure.querySelector("figcaption").append(buttons);
  figure.append(words);
}

function human(bytes) {
  let power = 0;
  while (bytes >= 1023.5 && power < 6) {
    bytes /= 1024;
    power += 1;
  }
  return power === 0 ? String(Math.round(bytes)) : bytes.toFixed(bytes < 99.95 ? 1 : 0) + "KMGTPE"[power - 1];
}
