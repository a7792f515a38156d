// The heap over time: a time line on which the reader selects a snapshot, and its call stacks as a
// flame graph and as a tree. Branches are built when they are opened, since a recording can have a
// hundred thousand calls.
"use strict";
{
  const data = JSON.parse(document.getElementById("heap-data").textContent);
  const host = document.getElementById("heap");
  const LINES = ["live", "held", "resident", "RssAnon", "RssFile", "RssShmem", "VmSwap"];
  // Rows shown at once below a call; maximum number of cells and depth of a flame graph.
  const ROWS = 100;
  const CELLS = 2500;
  const DEEPEST = 200;
  const CELL = 20;
  const count = (number) => number.toLocaleString("en");
  const percent = (part) => (part >= 0.9995 ? "100%" : (part * 100).toFixed(part < 0.0995 ? 2 : 1) + "%");

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value === true) element.setAttribute(key, "");
      else if (value !== false) element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  function svgMake(name, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function duration(nanos) {
    if (nanos < 1e6) return (nanos / 1e3).toFixed(0) + " µs";
    if (nanos < 1e9) return (nanos / 1e6).toFixed(nanos < 1e7 ? 2 : 0) + " ms";
    if (nanos < 600e9) return (nanos / 1e9).toFixed(nanos < 1e10 ? 2 : 1) + " s";
    return Math.floor(nanos / 60e9) + " min " + Math.round((nanos / 1e9) % 60) + " s";
  }

  // Call stacks as nodes: each node follows its parent and has the index of its frame.
  const parents = Int32Array.from(data.parents, (back, at) => (back === 0 ? -1 : at - back));
  const frames = Int32Array.from(data.frames);
  const kids = (() => {
    const starts = new Int32Array(parents.length + 1);
    for (const parent of parents) if (parent >= 0) starts[parent + 1] += 1;
    for (let at = 0; at < parents.length; at += 1) starts[at + 1] += starts[at];
    const next = starts.slice();
    const list = new Int32Array(starts[parents.length]);
    parents.forEach((parent, at) => {
      if (parent >= 0) list[next[parent]++] = at;
    });
    return { starts, list };
  })();
  // Frames of one function in one module are one key. Its source lines are listed.
  const keys = [];
  const keyOf = (() => {
    const known = new Map();
    return Int32Array.from(data.functions, (name, frame) => {
      const words = name + "," + data.modules[frame];
      if (!known.has(words)) {
        const module = data.modules[frame] < 0 ? "" : data.names[data.modules[frame]];
        const base = module.slice(module.lastIndexOf("/") + 1);
        const text = name >= 0 ? data.names[name] : base ? "[" + base + "]" : "[unknown]";
        known.set(words, keys.length);
        // One color for each file of code, a little different for each function.
        keys.push({ text, module, base, hue: (hueOf(base) + (hueOf(text) % 50)) % 360 });
      }
      return known.get(words);
    });
  })();

  function hueOf(text) {
    let sum = 7;
    for (let at = 0; at < text.length; at += 1) sum = (sum * 31 + text.charCodeAt(at)) >>> 0;
    return sum % 360;
  }

  function placeOf(frame) {
    const file = data.files[frame];
    if (file < 0) return "";
    const name = data.names[file];
    return name.slice(name.lastIndexOf("/") + 1) + ":" + data.lines[frame];
  }

  // Snapshots that have call stacks, in order of time; the peak and the end always have them.
  const stops = data.trees.map((tree) => ({ name: String(tree.moment), time: data.times[tree.moment], tree }));
  const highest = data.live.reduce((best, live, at) => (live > data.live[best] ? at : best), 0);
  const peakTime = data.peakAt ?? data.times[highest] ?? data.took;
  stops.push({ name: "peak", time: peakTime, bytes: data.peak[0], blocks: data.peak[1] });
  const last = Math.max(data.took, data.times[data.times.length - 1] ?? 0, peakTime);
  stops.push({ name: "end", time: last, bytes: data.leaked[0], blocks: data.leaked[1] });
  stops.sort((a, b) => a.time - b.time || (b.name === "end" ? -1 : a.name === "end" ? 1 : 0));

  const sites = data.nodes.length;
  const column = (of) => Float64Array.from(data[of]);
  const WHOLE = {
    allocated: { label: "Allocated, all the time", main: "bytesAllocated", other: "blocksAllocated" },
    allocations: { label: "Allocations, all the time", main: "blocksAllocated", other: "bytesAllocated", counts: true },
    temporary: { label: "Temporary allocations, all the time", main: "temporary", other: "blocksAllocated", counts: true },
  };

  // Current selection.
  const state = { stop: stops.findIndex((stop) => stop.name === "peak"), of: "live", way: "up", least: 0.5, find: "", kind: "" };
  let chosen;

  function readHash() {
    const words = new URLSearchParams(location.hash.slice(1));
    const moment = words.get("moment");
    if (moment !== null) {
      let at = stops.findIndex((stop) => stop.name === moment);
      const time = data.times[Number(moment)];
      if (at < 0 && time !== undefined) at = nearest(time);
      if (at >= 0) state.stop = at;
    }
    if (words.get("of") in WHOLE || words.get("of") === "live") state.of = words.get("of");
    if (["up", "down"].includes(words.get("way"))) state.way = words.get("way");
  }

  function writeHash() {
    const words = new URLSearchParams({ moment: stops[state.stop].name, of: state.of, way: state.way });
    history.replaceState(null, "", "#" + words);
  }

  function nearest(time) {
    return stops.reduce((best, stop, at) => (Math.abs(stop.time - time) < Math.abs(stops[best].time - time) ? at : best), 0);
  }

  // The values of each site for the selection: `main` for shares, `other` for the second column.
  function choose() {
    const stop = stops[state.stop];
    let main, other, rest = [0, 0], counts = false;
    if (state.of !== "live") {
      const whole = WHOLE[state.of];
      [main, other, counts] = [column(whole.main), column(whole.other), whole.counts === true];
    } else if (stop.tree) {
      [main, other] = [new Float64Array(sites), new Float64Array(sites)];
      stop.tree.sites.forEach((site, at) => {
        main[site] = stop.tree.bytes[at];
        other[site] = stop.tree.blocks[at];
      });
      rest = stop.tree.others;
    } else {
      const name = stop.name === "peak" ? "Peak" : "Leaked";
      [main, other] = [column("bytes" + name), column("blocks" + name)];
    }
    if (state.kind) {
      data.kinds.forEach((kind, site) => {
        if (kind !== state.kind) main[site] = other[site] = 0;
      });
      rest = [0, 0];
    }
    const mains = new Float64Array(parents.length);
    const others = new Float64Array(parents.length);
    let sum = 0;
    const matches = matching();
    let found = 0;
    for (let site = 0; site < sites; site += 1) {
      const node = data.nodes[site];
      sum += main[site];
      if (node < 0) continue;
      mains[node] += main[site];
      others[node] += other[site];
      if (matches && matches[node]) found += main[site];
    }
    for (let node = parents.length - 1; node >= 0; node -= 1) {
      if (parents[node] >= 0) {
        mains[parents[node]] += mains[node];
        others[parents[node]] += others[node];
      }
    }
    chosen = { main, other, mains, others, rest, counts, total: sum + rest[0], found: matches && found };
  }

  // Marks the nodes whose frame, or the frame of an ancestor, matches the search.
  function matching() {
    if (!state.find) return null;
    const wanted = state.find.toLowerCase();
    const hit = keys.map((key) => (key.text + " " + key.module).toLowerCase().includes(wanted));
    const matches = new Uint8Array(parents.length);
    for (let node = 0; node < parents.length; node += 1) {
      matches[node] = hit[keyOf[frames[node]]] || (parents[node] >= 0 && matches[parents[node]]) ? 1 : 0;
    }
    return matches;
  }

  const isFound = (key) => state.find !== "" && (keys[key].text + " " + keys[key].module).toLowerCase().includes(state.find.toLowerCase());

  // A branch: a function, its sums, and its nodes. From callers to callees, the values of a node
  // include all nodes below it. From callees to callers, they are the values of the sites that
  // reach it.
  function gather(groups, node, main, other) {
    const key = keyOf[frames[node]];
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { key, main: 0, other: 0, items: [], places: new Set() }));
    group.main += main;
    group.other += other;
    group.items.push([node, main, other]);
    if (group.places.size < 4) group.places.add(placeOf(frames[node]));
  }

  function roots() {
    const groups = new Map();
    if (state.way === "down") {
      for (let node = 0; node < parents.length; node += 1) {
        if (parents[node] < 0 && chosen.mains[node] > 0) gather(groups, node, chosen.mains[node], chosen.others[node]);
      }
    } else {
      for (let site = 0; site < sites; site += 1) {
        if (chosen.main[site] > 0 && data.nodes[site] >= 0) gather(groups, data.nodes[site], chosen.main[site], chosen.other[site]);
      }
    }
    return sorted(groups);
  }

  function below(branch) {
    if (branch.below) return branch.below;
    const groups = new Map();
    for (const [node, main, other] of branch.items) {
      if (state.way === "down") {
        for (let at = kids.starts[node]; at < kids.starts[node + 1]; at += 1) {
          const kid = kids.list[at];
          if (chosen.mains[kid] > 0) gather(groups, kid, chosen.mains[kid], chosen.others[kid]);
        }
      } else if (parents[node] >= 0) {
        gather(groups, parents[node], main, other);
      }
    }
    branch.below = sorted(groups);
    return branch.below;
  }

  const sorted = (groups) => [...groups.values()].sort((a, b) => b.main - a.main);
  const words = (number) => (chosen.counts ? count(number) : human(number) + (number < 1023.5 ? " B" : ""));
  const otherWords = (number) => (chosen.counts && state.of === "allocations" ? human(number) : count(number));

  // The time line.
  const svg = svgMake("svg", { role: "img" });
  const shown = new Set(LINES.slice(0, 3).filter((name) => data[name].some((value) => value !== null)));
  const lineBox = make("div", { class: "lines" });
  LINES.forEach((name, at) => {
    if (!data[name].some((value) => value !== null && value > 0)) return;
    const input = make("input", { type: "checkbox", checked: shown.has(name), onchange: (event) => {
      if (event.target.checked) shown.add(name);
      else shown.delete(name);
      drawTimes();
    } });
    const label = make("label", {}, input, name);
    label.style.setProperty("--hue", (210 + at * 137) % 360);
    lineBox.append(label);
  });
  // The peak lies between snapshots.
  const before = data.times.findIndex((time) => time >= peakTime);
  const place = before < 0 ? data.times.length : before;
  const withPeak = (list, value) => [...list.slice(0, place), value, ...list.slice(place)];
  const course = { times: withPeak(data.times, peakTime), values: withPeak(data.live, data.peak[0]) };
  const pointed = make("output", { class: "says soft" });
  let plot;

  function drawTimes() {
    const width = Math.max(280, svg.clientWidth || 900);
    const height = Math.max(160, svg.clientHeight || 256);
    const [left, right, top, bottom] = [58, 14, 18, 24];
    const names = LINES.filter((name) => shown.has(name));
    let most = data.peak[0];
    for (const name of names) for (const value of data[name]) if (value > most) most = value;
    // Round the maximum up, so that four or fewer steps of 1, 2, 2.5 or 5 times a power of ten in
    // KiB or MiB cover it.
    const unit = 1024 ** Math.floor(Math.log(Math.max(1, most / 4)) / Math.log(1024));
    const ten = 10 ** Math.floor(Math.log10(Math.max(1, most / 4 / unit)));
    const round = unit * ten * ([1, 2, 2.5, 5, 10].find((it) => it * ten * unit * 4 >= most) ?? 10);
    most = Math.max(4, Math.ceil(most / round) * round);
    const steps = Math.round(most / round) || 4;
    const x = (time) => left + (last > 0 ? Math.min(1, time / last) : 0) * (width - left - right);
    const y = (value) => top + (1 - value / most) * (height - top - bottom);
    plot = { x, y, left, right, width };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [];
    for (let part = 0; part <= steps; part += 1) {
      const value = (most * part) / steps;
      parts.push(svgMake("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      parts.push(svgMake("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, human(value)));
    }
    for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      parts.push(svgMake("text", { x: x(last * part), y: height - 6, "text-anchor": anchor }, part === 0 ? "0" : duration(last * part)));
    }
    names.forEach((name) => {
      const hue = (210 + LINES.indexOf(name) * 137) % 360;
      const [times, values] = name === "live" ? [course.times, course.values] : [data.times, data[name]];
      const [path, area] = pathOf(times, values, x, y);
      if (name === "live" && area) parts.push(svgMake("path", { class: "area", d: area, style: `--hue:${hue}` }));
      parts.push(svgMake("path", { d: path, style: `--hue:${hue}` }));
    });
    for (const stop of stops) {
      parts.push(svgMake("line", { class: "stop", x1: x(stop.time), x2: x(stop.time), y1: height - bottom, y2: height - bottom + 5 }));
    }
    const peak = x(peakTime);
    parts.push(svgMake("line", { class: "peak", x1: peak, x2: peak, y1: top - 6, y2: height - bottom }));
    const side = peak > width * 0.7 ? "end" : "start";
    parts.push(svgMake("text", { class: "peak", x: peak + (side === "end" ? -5 : 5), y: 12, "text-anchor": side }, "peak " + human(data.peak[0])));
    const at = x(stops[state.stop].time);
    if (state.of === "live") parts.push(svgMake("line", { class: "chosen", x1: at, x2: at, y1: top - 6, y2: height - bottom + 6 }));
    parts.push(svgMake("line", { class: "pointed", x1: -9, x2: -9, y1: top, y2: height - bottom }));
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `Live, held and resident bytes over ${duration(last)}; the peak of ${human(data.peak[0])} at ${duration(peakTime)}`);
  }

  // A path with gaps for unknown values. In each column of pixels the highest and the last snapshot
  // are drawn.
  function pathOf(times, values, x, y) {
    let path = "";
    let area = "";
    let from = null;
    let column = null;
    const point = (px, py) => {
      path += (from === null ? "M" : "L") + px.toFixed(1) + " " + py.toFixed(1);
      from ??= px;
    };
    const end = () => {
      if (column) point(column.px, column.py);
      if (from !== null) area = path + `L${(column ? column.px : from).toFixed(1)} ${y(0)}L${from.toFixed(1)} ${y(0)}Z`;
      column = null;
    };
    values.forEach((value, at) => {
      if (value === null) {
        end();
        from = null;
        return;
      }
      const [px, py] = [x(times[at]), y(value)];
      if (column && Math.floor(column.px) === Math.floor(px)) {
        column.top = Math.min(column.top, py);
        Object.assign(column, { px, py });
        return;
      }
      if (column) {
        if (column.top < column.py) point(column.px, column.top);
        point(column.px, column.py);
      }
      column = { px, py, top: py };
    });
    end();
    return [path, area];
  }

  function timeAt(event) {
    const box = svg.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * plot.width;
    return (Math.max(0, px - plot.left) / (plot.width - plot.left - plot.right)) * last;
  }

  svg.addEventListener("pointermove", (event) => {
    if (data.times.length === 0) return;
    const time = timeAt(event);
    let at = 0;
    data.times.forEach((it, index) => {
      if (Math.abs(it - time) < Math.abs(data.times[at] - time)) at = index;
    });
    const line = svg.querySelector(".pointed");
    for (const key of ["x1", "x2"]) line.setAttribute(key, plot.x(data.times[at]));
    const said = LINES.filter((name) => data[name][at] !== null).map((name) => name + " " + human(data[name][at]));
    pointed.textContent = `${duration(data.times[at])}: ${said.join(", ")}; ${count(data.liveBlocks[at])} blocks, ${count(data.allocations[at])} allocations so far`;
  });
  svg.addEventListener("click", (event) => pick(nearest(timeAt(event))));

  // Controls.
  const range = make("input", { type: "range", min: 0, max: stops.length - 1, "aria-label": "Moment", oninput: () => pick(Number(range.value)) });
  const step = (by) => pick(Math.min(stops.length - 1, Math.max(0, state.stop + by)));
  const named = (name) => pick(stops.findIndex((stop) => stop.name === name));
  const button = (text, label, act) => make("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  const choice = (label, options, value, act) => {
    const select = make("select", { "aria-label": label, onchange: () => act(select.value) });
    for (const [key, text] of options) select.append(make("option", { value: key, selected: key === value }, text));
    return select;
  };
  const says = make("output", { class: "says", "aria-live": "polite" });
  const flame = make("div", { class: "flame", role: "group", "aria-label": "Flame graph" });
  const flameSays = make("output", { class: "says soft" });
  const tree = make("div", { class: "tree", role: "tree", "aria-label": "Call stacks" });
  readHash();
  const ofChoice = choice("Value", [["live", "Live at the moment"], ...Object.entries(WHOLE).map(([key, it]) => [key, it.label])], state.of, (value) => {
    state.of = value;
    show();
  });
  const wayChoice = choice("Order", [["up", "Functions that allocate, then their callers"], ["down", "From main down"]], state.way, (value) => {
    state.way = value;
    show();
  });
  const kindChoice = () => choice("Kind of memory", [["", "All memory"], ["heap", "Blocks of malloc"], ["mapping", "Mappings"], ["pool", "Pools"]], "", (value) => {
    state.kind = value;
    show();
  });
  const least = make("input", { type: "number", min: 0, max: 100, step: "any", value: state.least, "aria-label": "Hide stacks below this percentage", onchange: () => {
    state.least = Math.max(0, Number(least.value) || 0);
    drawTree();
  } });
  const find = make("input", { type: "search", placeholder: "Find a function or file", "aria-label": "Find a function or file", oninput: () => {
    state.find = find.value;
    show();
  } });
  host.append(
    lineBox,
    svg,
    pointed,
    make("div", { class: "controls" },
      make("div", { class: "pick" }, button("‹", "The moment before", () => step(-1)), range, button("›", "The next moment", () => step(1)),
        button("Peak", "The peak", () => named("peak")), button("End", "The end: what was never freed", () => named("end")))),
    make("div", { class: "controls" }, ofChoice, wayChoice, ...(data.kinds ? [kindChoice()] : []), make("label", {}, "Hide below ", least, " %"), find),
    says, flame, flameSays, tree,
  );

  function pick(stop) {
    if (stop < 0) return;
    state.stop = stop;
    state.of = "live";
    show();
  }

  function show() {
    writeHash();
    [range.value, ofChoice.value, wayChoice.value] = [state.stop, state.of, state.way];
    choose();
    const stop = stops[state.stop];
    const of = state.of === "live" ? describe(stop) : WHOLE[state.of].label + ": ";
    range.setAttribute("aria-valuetext", describe(stop));
    says.replaceChildren(of, make("b", {}, words(chosen.total)));
    if (state.of === "live" && !state.kind) says.append(blocksOf(stop));
    if (chosen.found !== null) says.append(`; ${percent(chosen.found / (chosen.total || 1))} found (${words(chosen.found)})`);
    drawTimes();
    zoom(null);
    drawTree();
  }

  function describe(stop) {
    const at = duration(stop.time);
    if (stop.name === "peak") return `The peak, at ${at}: `;
    if (stop.name === "end") return data.cut ? `When the recording was cut off, at ${at}: ` : `The end, at ${at}: never freed `;
    return `At ${at}: `;
  }

  function blocksOf(stop) {
    const blocks = stop.tree ? data.liveBlocks[stop.tree.moment] : stop.blocks;
    let text = ` in ${count(blocks)} ${blocks === 1 ? "block" : "blocks"}`;
    if (stop.tree) {
      const at = stop.tree.moment;
      for (const name of ["held", "resident", "VmSwap"]) {
        if (data[name][at] !== null && (name !== "VmSwap" || data[name][at] > 0)) text += `, ${name} ${human(data[name][at])}`;
      }
    }
    return text;
  }

  // The flame graph: a row for each depth, cells as wide as their values. A click makes a cell fill
  // the width.
  let zoomed = null;
  function zoom(branch) {
    zoomed = branch;
    drawFlame();
  }

  function drawFlame() {
    const cells = [];
    const width = flame.clientWidth || 900;
    const tops = zoomed ? [zoomed] : roots();
    const whole = zoomed ? zoomed.main : chosen.total;
    let row = tops;
    let depth = 0;
    let place = 0;
    for (const branch of row) {
      branch.left = place;
      branch.above = null;
      place += branch.main / whole;
    }
    while (row.length > 0 && depth < DEEPEST && cells.length < CELLS) {
      const next = [];
      for (const branch of row) {
        const part = branch.main / whole;
        if (part * width < 3 || cells.length >= CELLS) continue;
        cells.push(cellOf(branch, part, depth));
        let left = branch.left;
        for (const kid of below(branch)) {
          kid.left = left;
          kid.above = branch;
          left += kid.main / whole;
          next.push(kid);
        }
      }
      row = next;
      depth += 1;
    }
    flame.style.height = Math.max(1, depth - (cells.length > 0 ? 1 : 0)) * CELL + 2 + "px";
    flame.replaceChildren(...cells);
    if (cells.length > 0) cells[0].tabIndex = 0;
    flameSays.textContent = cells.length === 0 ? "Nothing." : zoomed ? "Escape or a click on the first cell: the whole again." : "A click on a cell makes it fill the width.";
  }

  function cellOf(branch, part, depth) {
    const key = keys[branch.key];
    const label = `${key.text}: ${words(branch.main)}, ${percent(branch.main / (chosen.total || 1))}`;
    const cell = make("button", { type: "button", tabindex: -1, title: label + (key.module ? `\n${key.module}` : ""), "aria-label": label }, part > 0.02 ? key.text : "");
    if (isFound(branch.key)) cell.classList.add("found");
    cell.style.cssText = `left:${branch.left * 100}%;width:${part * 100}%;top:${depth * CELL + 1}px;--hue:${key.hue}`;
    branch.cell = cell;
    cell.branch = branch;
    return cell;
  }

  flame.addEventListener("click", (event) => {
    const branch = event.target.closest("button")?.branch;
    if (branch) zoom(branch === zoomed ? null : branch);
    if (branch && zoomed) flame.querySelector("button")?.focus();
  });
  const tell = (event) => {
    const cell = event.target.closest("button");
    if (cell) flameSays.textContent = cell.getAttribute("aria-label") + (keys[cell.branch.key].module ? " · " + keys[cell.branch.key].module : "");
  };
  flame.addEventListener("pointerover", tell);
  flame.addEventListener("focusin", tell);
  flame.addEventListener("keydown", (event) => {
    const branch = event.target.branch;
    if (!branch || event.ctrlKey || event.metaKey || event.altKey) return;
    const beside = branch === zoomed ? [branch] : branch.above ? below(branch.above) : [...flame.children].map((cell) => cell.branch).filter((it) => !it.above);
    const at = beside.indexOf(branch);
    const to = { ArrowUp: branch.above, ArrowDown: below(branch)[0], ArrowLeft: beside[at - 1], ArrowRight: beside[at + 1] };
    if (event.key === "Escape") {
      zoom(null);
      flame.querySelector("button")?.focus();
    } else if (event.key in to) {
      event.preventDefault();
      if (to[event.key]?.cell?.isConnected) to[event.key].cell.focus();
    }
  });

  // The tree: one row for each branch. The rows below a branch are made when it is opened.
  function drawTree() {
    const head = make("div", { class: "row head" }, make("span", {}, "share"),
      make("span", {}, chosen.counts ? (state.of === "temporary" ? "temporary" : "count") : "bytes"),
      make("span", {}, state.of === "allocations" ? "bytes" : state.of === "live" ? "blocks" : "allocations"), make("span", { class: "what" }, state.way === "up" ? "allocated in, called from" : "called"));
    tree.replaceChildren(head);
    const tops = roots();
    tree.append(...rowsOf(tops, 0, 0));
    if (chosen.rest[0] > 0) tree.append(restRow("in calls too small to be recorded at this moment", chosen.rest[0], chosen.rest[1], 0));
    // Open the first rows as long as one callee has most of the value.
    let row = tree.querySelector("[role=treeitem]");
    for (let opened = 0; row?.branch && opened < 12; opened += 1) {
      const kids = below(row.branch);
      if (kids.length === 0 || (opened > 0 && kids[0].main < row.branch.main * 0.6)) break;
      open(row);
      row = row.nextElementSibling;
    }
    const first = tree.querySelector("[role=treeitem]");
    if (first) first.tabIndex = 0;
  }

  function rowsOf(branches, from, level) {
    const rows = [];
    const total = chosen.total || 1;
    let at = from;
    for (; at < branches.length && rows.length < ROWS; at += 1) {
      if (from === 0 && at > 0 && branches[at].main * 100 < state.least * total) break;
      rows.push(rowOf(branches[at], level));
    }
    if (at < branches.length) {
      let [main, other] = [0, 0];
      for (const branch of branches.slice(at)) [main, other] = [main + branch.main, other + branch.other];
      const row = restRow(`${count(branches.length - at)} more`, main, other, level);
      row.setAttribute("aria-expanded", "false");
      row.more = { branches, at, level };
      rows.push(row);
    }
    return rows;
  }

  function numbersOf(main, other) {
    const share = make("span", { class: "share" }, percent(main / (chosen.total || 1)));
    share.style.setProperty("--part", (100 * main) / (chosen.total || 1) + "%");
    const exact = make("span", chosen.counts ? {} : { title: count(main) + " bytes" }, words(main));
    return [share, exact, make("span", {}, otherWords(other))];
  }

  function rowOf(branch, level) {
    const key = keys[branch.key];
    const places = [...branch.places].filter((place) => place);
    const where = (places.length > 3 ? places.slice(0, 3).concat("…") : places).join(", ") || key.base;
    const what = make("span", { class: "what" }, key.text + " ", make("span", { class: "soft", title: key.module }, where));
    const row = make("div", { class: "row", role: "treeitem", "aria-level": level + 1, tabindex: -1 }, ...numbersOf(branch.main, branch.other), what);
    if (isFound(branch.key)) row.classList.add("found");
    what.style.setProperty("--level", level);
    row.branch = branch;
    row.level = level;
    if (level < DEEPEST && branch.items.some(hasBelow)) row.setAttribute("aria-expanded", "false");
    return row;
  }

  const hasBelow = ([node]) => (state.way === "up" ? parents[node] >= 0 : kids.starts[node] < kids.starts[node + 1]);

  function restRow(text, main, other, level) {
    const what = make("span", { class: "what soft" }, text);
    what.style.setProperty("--level", level);
    const row = make("div", { class: "row", role: "treeitem", "aria-level": level + 1, tabindex: -1 }, ...numbersOf(main, other), what);
    row.level = level;
    return row;
  }

  function open(row) {
    if (row.more) {
      const { branches, at, level } = row.more;
      const rows = rowsOf(branches, at, level);
      row.replaceWith(...rows);
      rows[0]?.focus();
    } else if (row.branch && row.getAttribute("aria-expanded") === "false") {
      row.setAttribute("aria-expanded", "true");
      row.after(...rowsOf(below(row.branch), 0, row.level + 1));
    }
  }

  function close(row) {
    row.setAttribute("aria-expanded", "false");
    while (row.nextElementSibling && row.nextElementSibling.level > row.level) row.nextElementSibling.remove();
  }

  tree.addEventListener("click", (event) => {
    const row = event.target.closest("[role=treeitem]");
    if (!row || String(getSelection())) return;
    focusOn(row);
    if (row.getAttribute("aria-expanded") === "true") close(row);
    else open(row);
  });

  function focusOn(row) {
    for (const other of tree.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  }

  tree.addEventListener("keydown", (event) => {
    const row = event.target.closest("[role=treeitem]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const expanded = row.getAttribute("aria-expanded");
    let to = null;
    if (event.key === "ArrowDown") to = row.nextElementSibling;
    else if (event.key === "ArrowUp") to = row.previousElementSibling;
    else if (event.key === "ArrowRight" && expanded === "true") to = row.nextElementSibling;
    else if (event.key === "ArrowRight" || ((event.key === "Enter" || event.key === " ") && expanded === "false")) open(row);
    else if ((event.key === "ArrowLeft" || event.key === "Enter" || event.key === " ") && expanded === "true") close(row);
    else if (event.key === "ArrowLeft") {
      to = row.previousElementSibling;
      while (to && !(to.level < row.level)) to = to.previousElementSibling;
    } else return;
    event.preventDefault();
    if (to?.matches("[role=treeitem]")) focusOn(to);
  });

  addEventListener("hashchange", () => {
    readHash();
    show();
  });
  let waiting = 0;
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      drawTimes();
      drawFlame();
    });
  });
  show();
}
