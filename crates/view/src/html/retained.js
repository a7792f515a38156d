// Retained bytes as an icicle chart: one row for each distance from the roots, with cells whose
// widths are their retained bytes.
"use strict";
{
  const data = JSON.parse(document.getElementById("retained-data").textContent);
  const host = document.getElementById("heap");
  // Maximum number of cells that are drawn at once, and the height of a cell.
  const CELLS = 2500;
  const CELL = 20;
  const count = (number) => number.toLocaleString("en");
  const kids = data.labels.map(() => []);
  const tops = [];
  data.parents.forEach((parent, at) => (parent < 0 ? tops : kids[parent]).push(at));
  const byBytes = (list) => list.sort((a, b) => data.bytes[b] - data.bytes[a]);
  [tops, ...kids].forEach(byBytes);
  const total = tops.reduce((sum, at) => sum + data.bytes[at], 0) || 1;
  const percent = (part) => ((part / total) * 100).toFixed(part < total / 10 ? 2 : 1) + "%";
  const textOf = (at) => data.names[data.labels[at]];
  let zoomed = -1;
  let wanted = "";

  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const find = make("input", { type: "search", placeholder: "Find a variable, thread or type", "aria-label": "Find a variable, thread or type" });
  const found = make("output", { class: "soft" });
  const flame = make("div", { class: "flame", role: "group", "aria-label": "Retained bytes" });
  const says = make("output", { class: "says soft" });
  host.append(make("div", { class: "controls" }, find, found), flame, says);

  function hueOf(text) {
    let sum = 7;
    for (let at = 0; at < text.length; at += 1) sum = (sum * 31 + text.charCodeAt(at)) >>> 0;
    return sum % 360;
  }

  const matches = (at) => wanted !== "" && textOf(at).toLowerCase().includes(wanted);
  const labelOf = (at) => `${textOf(at)}: ${human(data.bytes[at])} in ${count(data.blocks[at])} blocks, ${percent(data.bytes[at])}`;

  function cellOf(at, left, part, depth) {
    const cell = make("button", { type: "button", "data-at": at, title: labelOf(at), "aria-label": labelOf(at) }, part > 0.02 ? textOf(at) : "");
    if (matches(at)) cell.classList.add("found");
    cell.style.cssText = `left:${left * 100}%;width:${part * 100}%;top:${depth * CELL + 1}px;--hue:${hueOf(textOf(at))}`;
    return cell;
  }

  function draw() {
    const width = flame.clientWidth || 900;
    const whole = zoomed < 0 ? total : data.bytes[zoomed] || 1;
    const cells = [];
    let place = 0;
    let row = (zoomed < 0 ? tops : [zoomed]).map((at) => {
      const left = place;
      place += data.bytes[at] / whole;
      return [at, left];
    });
    let depth = 0;
    for (; row.length > 0 && cells.length < CELLS; depth += 1) {
      const next = [];
      for (const [at, left] of row) {
        const part = data.bytes[at] / whole;
        if (part * width < 3 || cells.length >= CELLS) continue;
        cells.push(cellOf(at, left, part, depth));
        let kidLeft = left;
        for (const kid of kids[at]) {
          next.push([kid, kidLeft]);
          kidLeft += data.bytes[kid] / whole;
        }
      }
      row = next;
    }
    flame.style.height = Math.max(1, depth) * CELL + 2 + "px";
    flame.replaceChildren(...cells);
    says.textContent = zoomed < 0 ? "A click on a cell makes it fill the width." : "Escape or a click on the first cell: the whole again.";
  }

  // Bytes of matching cells, without cells below other matching cells.
  function matchedBytes() {
    let sum = 0;
    const inside = new Uint8Array(data.labels.length);
    data.parents.forEach((parent, at) => {
      const above = parent >= 0 && inside[parent] === 1;
      inside[at] = above || matches(at) ? 1 : 0;
      if (inside[at] === 1 && !above) sum += data.bytes[at];
    });
    return sum;
  }

  find.addEventListener("input", () => {
    wanted = find.value.toLowerCase();
    const sum = matchedBytes();
    found.textContent = wanted === "" ? "" : `${human(sum)} retained by matches, ${percent(sum)}`;
    draw();
  });
  flame.addEventListener("click", (event) => {
    const cell = event.target.closest("button");
    if (!cell) return;
    const at = Number(cell.dataset.at);
    zoomed = at === zoomed ? -1 : at;
    draw();
    flame.querySelector("button")?.focus();
  });
  const tell = (event) => {
    const cell = event.target.closest("button");
    if (cell) says.textContent = cell.getAttribute("aria-label");
  };
  flame.addEventListener("pointerover", tell);
  flame.addEventListener("focusin", tell);
  flame.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    zoomed = -1;
    draw();
    flame.querySelector("button")?.focus();
  });
  addEventListener("resize", draw);
  draw();
}
