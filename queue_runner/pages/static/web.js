// What changes without a reload: parts of the first page, and a log that grows. Everything works without this file, too.
"use strict";
(() => {
  const lost = document.getElementById("lost");
  const CHARS = 1 << 20;

  // A browser has six connections to a server: a page that nobody sees gives its own back.
  function listen(address, events) {
    let source = null;
    const stop = () => { if (source) { source.close(); source = null; } };
    const start = () => {
      if (source || document.hidden) return;
      source = new EventSource(address);
      source.onopen = () => { lost.hidden = true; };
      source.onerror = () => { lost.hidden = false; };
      source.addEventListener("end", stop);
      for (const [name, use] of Object.entries(events)) {
        source.addEventListener(name, (event) => use(JSON.parse(event.data)));
      }
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
    window.addEventListener("pagehide", stop);
    window.addEventListener("pageshow", start);
    start();
  }

  // The server has escaped the HTML of a part by the template that made the page itself.
  function replace(id) {
    const place = document.getElementById(id);
    let waiting = null; // until nobody is about to press a button in it
    const apply = () => {
      if (waiting === null) return;
      const used = place.contains(document.activeElement) && document.activeElement.matches("button, summary");
      if (used || place.querySelector("details[open]")) { setTimeout(apply, 1000); return; }
      const at = [...place.querySelectorAll(".wide")].map((box) => box.scrollLeft);
      place.innerHTML = waiting;
      waiting = null;
      place.querySelectorAll(".wide").forEach((box, n) => { box.scrollLeft = at[n] || 0; });
    };
    return (html) => { const idle = waiting === null; waiting = html; if (idle) apply(); };
  }

  const live = document.querySelector("[data-live]");
  if (live) {
    const trouble = (sentence) => { lost.textContent = sentence; lost.hidden = false; };
    listen(live.dataset.live, { running: replace("running"), queue: replace("queue"), trouble });
  }

  const log = document.querySelector("[data-follow]");
  if (log) {
    log.scrollTop = log.scrollHeight;
    listen(log.dataset.follow, {
      begin: () => { log.textContent = ""; },
      text: (more) => {
        const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        log.append(more);
        log.normalize();
        const all = log.textContent;
        if (all.length > CHARS) log.textContent = all.slice(all.indexOf("\n", all.length - CHARS) + 1);
        document.getElementById("empty")?.remove();
        if (below) log.scrollTop = log.scrollHeight;
      },
    });
  }
})();
