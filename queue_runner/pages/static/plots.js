// Time and loss over the iterations, by uPlot. The data are JSON in the page; labels are set as text, never as HTML.
"use strict";
(() => {
  if (typeof uPlot === "undefined") return;
  let families = new Map();
  const root = document.documentElement;
  root.classList.add("scripted");
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const seconds = (s) => {
    if (s == null || !isFinite(s)) return "";
    if (s === 0) return "0";
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]])
      if (Math.abs(s) >= size * 0.9995 || unit === "ns") return +(s / size).toPrecision(3) + " " + unit;
    return "";
  };
  const FAR = 8; // as in axis.py: from this ratio on an axis is logarithmic
  const SPARSE = 200; // values of a run with gaps below which each is a dot: a line alone would claim those between
  const WHOLE = Array.from({ length: 24 }, (_, k) => [1, 2, 5][k % 3] * 10 ** Math.floor(k / 3)); // steps of iterations
  const plain = (x) => (x == null || !isFinite(x) ? "" : String(+x.toPrecision(5)));

  const span = (runs, kind) => {
    let low = Infinity, high = -Infinity;
    for (const run of runs)
      for (const y of run[kind])
        if (y != null) { if (y < low) low = y; if (y > high) high = y; }
    return [low, high];
  };

  class Plot {
    constructor(figure) {
      this.figure = figure;
      this.kind = figure.dataset.kind;
      this.box = figure.querySelector(".canvas");
      this.whole = this.kind === "loss";
      new ResizeObserver(() => {
        const width = this.box.clientWidth;
        if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.plot.height });
      }).observe(this.box);
    }

    // Shows the newest data. What the reader has chosen stays: the rows, the range, the enlarged part.
    update() {
      const family = families.get(this.figure.dataset.family);
      if (!family) return;
      const data = JSON.stringify(family);
      const runs = family.runs.filter((run) => run[this.kind].some((y) => y != null));
      this.figure.style.display = runs.length ? "" : "none";
      if (data === this.data) return;
      if (this.plot && this.plot.select.width) { setTimeout(() => this.update(), 1000); return; } // being enlarged
      this.data = data;
      [this.family, this.runs] = [family, runs];
      if (!runs.length) return;
      this.extent = span(this.runs, this.kind);
      const [from, to] = this.kind === "dur" ? family.measured : this.extent;
      if (!this.plot) this.log = this.kind === "dur" && from > 0 && to / from >= FAR;
      if (this.extent[0] <= 0) this.log = false;
      const drawn = [...new Set(this.runs.map((run) => run.arm))].sort();
      const tools = JSON.stringify([family.arms, drawn, family.outside > 0, this.extent[0] > 0]);
      if (tools !== this.tools) { this.off = new Set(); this.buttons(); }
      this.tools = tools;
      this.draw();
    }

    button(text, className, pressed, act) {
      const made = document.createElement("button");
      made.type = "button";
      made.className = className;
      made.setAttribute("aria-pressed", String(pressed));
      made.append(...text);
      made.addEventListener("click", () => { act(made); });
      this.figure.querySelector(".tools").append(made);
      return made;
    }

    buttons() {
      const tools = this.figure.querySelector(".tools");
      const focused = tools.contains(document.activeElement) && document.activeElement.textContent;
      tools.replaceChildren();
      this.family.arms.forEach((arm, at) => {
        if (!this.runs.some((run) => run.arm === at)) return;
        const swatch = document.createElement("span");
        swatch.className = "swatch";
        const label = document.createElement("bdi");
        label.textContent = arm.label;
        this.button([swatch, label], "arm " + arm.colour, !this.off.has(at), (made) => {
          const hidden = !this.off.delete(at);
          if (hidden) this.off.add(at);
          made.setAttribute("aria-pressed", String(!hidden));
          this.plot.batch(() => this.runs.forEach((run, k) => run.arm === at && this.plot.setSeries(k + 1, { show: !hidden })));
        });
      });
      if (this.kind === "dur" && this.family.outside)
        this.button(["whole range"], "choice", this.whole, (made) => {
          this.whole = !this.whole;
          made.setAttribute("aria-pressed", String(this.whole));
          this.draw();
        });
      if (this.extent[0] > 0)
        this.button(["logarithmic"], "choice", this.log, (made) => {
          this.log = !this.log;
          made.setAttribute("aria-pressed", String(this.log));
          this.draw();
        });
      if (focused) [...tools.children].find((one) => one.textContent === focused)?.focus({ preventScroll: true });
    }

    sparse(run) {
      const at = this.family.x.filter((x, k) => run[this.kind][k] != null);
      return at.length < 3 || (at.length < SPARSE && at[at.length - 1] - at[0] >= 2 * at.length);
    }

    range() {
      const [low, high] = this.whole ? this.extent : this.family.measured;
      const free = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
      return this.log ? [low / 1.1, high * 1.1] : [low - free, high + free];
    }

    say() {
      const out = this.family.outside;
      const text = this.kind === "loss" ? "" : this.whole || !out
        ? "" : `Not drawn: ${out} iteration${out === 1 ? "" : "s"} of compilation or warm-up, outside the range of the measured ones. "whole range" shows ${out === 1 ? "it" : "them"}.`;
      this.figure.querySelector(".said").textContent = text;
    }

    draw() {
      const show = this.kind === "dur" ? seconds : plain;
      const [x, shown] = [this.family.x, this.plot && this.plot.scales.x];
      const enlarged = shown && (shown.min > this.first || shown.max < this.last) && { min: shown.min, max: shown.max };
      [this.first, this.last] = [x[0], x[x.length - 1]];
      if (this.plot) this.plot.destroy();
      const many = this.runs.length > 12;
      const axis = { stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 0.5 }, ticks: { stroke: () => css("--line"), width: 0.5 }, font: "14px system-ui, sans-serif" };
      this.plot = new uPlot({
        width: this.box.clientWidth || 340,
        height: 280,
        legend: { show: false },
        cursor: { points: { show: false }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: this.log ? 3 : 1, range: () => this.range() } },
        axes: [
          { ...axis, incrs: WHOLE, label: "iteration", labelSize: 20, labelFont: axis.font, size: 32, values: (u, marks) => marks.map((x) => (x == null ? "" : x.toLocaleString("en"))) },
          { ...axis, label: this.kind === "dur" ? "time per " + this.family.unit : "training loss", labelSize: 20, labelFont: axis.font, size: (u, texts) => 28 + 8 * Math.max(4, ...(texts ?? []).map((text) => text.length)), values: (u, marks) => marks.map(show) },
        ],
        series: [{}, ...this.runs.map((run) => ({
          stroke: () => css("--" + this.family.arms[run.arm].colour),
          width: many ? 0.75 : 1.25,
          alpha: (run.out ? 0.35 : 1) * (many ? 0.6 : 0.9),
          dash: run.out ? [4, 3] : undefined,
          spanGaps: true,
          points: { show: this.sparse(run), size: 5 },
          show: !this.off.has(run.arm),
        }))],
      }, [this.family.x, ...this.runs.map((run) => run[this.kind])], this.box);
      if (enlarged) this.plot.setScale("x", enlarged);
      this.say();
    }
  }

  const plots = new Map();
  function update() {
    const source = document.getElementById("plots");
    families = new Map((source ? JSON.parse(source.textContent) : []).map((family) => [family.id, family]));
    for (const figure of plots.keys()) if (!figure.isConnected) plots.delete(figure);
    for (const figure of document.querySelectorAll("figure.plot")) {
      if (!plots.has(figure)) plots.set(figure, new Plot(figure));
      plots.get(figure).update();
    }
  }
  update();
  document.addEventListener("patched", update);
  const redraw = () => plots.forEach((one) => one.plot && one.plot.redraw(false, true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
})();
