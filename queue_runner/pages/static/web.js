// What changes without a reload: parts of the first page, and a log that grows. Everything works without this file, too.
"use strict";
(() => {
  const lost = document.getElementById("lost");
  const LOST = lost?.textContent;
  const CHARS = 1 << 20;

  // Says what keeps the page from being current; an empty sentence: nothing does.
  function trouble(sentence) {
    lost.textContent = sentence;
    lost.hidden = !sentence;
  }

  // A browser has six connections to a server: a page that nobody sees gives its own back.
  function listen(address, events) {
    let source = null, over = false;
    const stop = () => { if (source) { source.close(); source = null; } };
    const start = () => {
      if (source || over || document.hidden) return;
      source = new EventSource(address);
      source.onopen = () => { lost.hidden = true; };
      source.onerror = () => { if (lost.hidden) trouble(LOST); };
      source.addEventListener("end", () => { over = true; stop(); });
      for (const [name, use] of Object.entries(events)) {
        source.addEventListener(name, (event) => use(JSON.parse(event.data)));
      }
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
    window.addEventListener("pagehide", stop);
    window.addEventListener("pageshow", start);
    start();
    return () => { over = true; stop(); };
  }

  // Makes the children of `old` those of `fresh` by as few changes as there are: what has the focus, a selection, an open
  // fold or a scroll position keeps it. The server has escaped the HTML by the template that made the page itself.
  function patchChildren(old, fresh) {
    const ids = new Set([...fresh.children].map((child) => child.id));
    for (const child of [...old.children]) if (child.id && !ids.has(child.id)) child.remove();
    let at = old.firstChild;
    // a selection in a child that stays as it is: it does not become that of its neighbour
    const chosen = [...old.childNodes].find((child) => !child.id && holds(child));
    const rest = [...fresh.childNodes];
    for (const made of [...rest]) {
      // blanks, and what no later node can be, go first: else everything behind them would be made anew
      const goes = (node) => node.nodeType === Node.TEXT_NODE ? !node.data.trim() : !rest.some((other) => other.nodeName === node.nodeName);
      while (at && !at.id && at.nodeName !== made.nodeName && goes(at)) {
        const next = at.nextSibling;
        at.remove();
        at = next;
      }
      if (chosen && chosen.parentNode === old && at && (at === chosen || at.compareDocumentPosition(chosen) & Node.DOCUMENT_POSITION_FOLLOWING)) {
        if (chosen.isEqualNode(made)) while (at !== chosen) { const next = at.nextSibling; if (!at.id) at.remove(); at = next; }
        else if (at === chosen && rest.some((other) => other.isEqualNode(chosen))) { rest.shift(); old.insertBefore(made, at); continue; }
      }
      rest.shift();
      const same = made.id ? [...old.children].find((child) => child.id === made.id)
        : at && !at.id && at.nodeName === made.nodeName ? at : null;
      if (!same) { old.insertBefore(made, at); continue; }
      // what moves loses the focus and a selection: where `same` has one, the nodes before it go behind it instead
      if (holds(same)) {
        const last = same.nextSibling;
        while (at !== same) { const next = at.nextSibling; old.insertBefore(at, last); at = next; }
      }
      if (same === at) at = at.nextSibling; else old.insertBefore(same, at);
      patch(same, made);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  const holds = (node) => node.contains(document.activeElement) || node.contains(getSelection().anchorNode);

  function patch(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
    if (old.matches("[data-keep], script[src]")) return;
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    patchChildren(old, fresh);
  }

  function replace(id) {
    const place = document.getElementById(id);
    return (html) => {
      const made = document.createElement("template");
      made.innerHTML = html;
      patchChildren(place, made.content);
    };
  }

  // A page that is not streamed is asked for again when the queue has changed, at most every few seconds; so is that of
  // a running run of which no progress is streamed: one of several lanes is.
  const PAUSE_MS = 5000;
  function refresh() {
    let due = false, busy = false;
    const ask = async () => {
      if (busy) { due = true; return; }
      busy = true;
      try {
        const answer = await fetch(location.href);
        if (answer.ok) {
          patch(document.body, new DOMParser().parseFromString(await answer.text(), "text/html").body);
          document.dispatchEvent(new Event("patched"));
        }
      } catch { trouble(LOST); }
      setTimeout(() => { busy = false; if (due) { due = false; ask(); } }, PAUSE_MS);
    };
    return ask;
  }

  // A cancellation takes seconds: a second click would be refused, and its answer replace that of the first.
  const enable = (form, is) => { if (form.method === "post") form.querySelector("button").disabled = !is; };
  document.addEventListener("submit", (event) => enable(event.target, false));
  window.addEventListener("pageshow", () => [...document.forms].forEach((form) => enable(form, true)));

  const stale = document.querySelector("[data-refresh]");
  if (stale) {
    const ask = refresh();
    const progress = ({ run, html }) => {
      const place = document.getElementById("progress");
      if (place?.dataset.run === run) replace("progress")(html); else if (place) ask();
    };
    const end = listen("/live", { progress, queue: ask, trouble });
    document.addEventListener("patched", () => { if (!stale.dataset.refresh) end(); });
  }

  const live = document.querySelector("[data-live]");
  if (live) {
    listen(live.dataset.live, {
      running: replace("running"), overview: replace("overview"), queue: replace("queue"), trouble,
    });
  }

  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  if (log?.dataset.follow) {
    let again = false;
    listen(log.dataset.follow, {
      begin: () => { again = true; },
      text: (more) => {
        const top = log.scrollTop, below = log.scrollHeight - top - log.clientHeight < 40;
        // a stream that is opened again begins with the end of the log: what stands above that stays
        if (again) log.textContent = log.textContent.slice(0, Math.max(0, log.textContent.lastIndexOf(more.slice(0, 2000))));
        again = false;
        log.append(more);
        log.normalize();
        const all = log.textContent;
        if (all.length > CHARS) log.textContent = all.slice(all.indexOf("\n", all.length - CHARS) + 1);
        document.getElementById("empty")?.remove();
        log.scrollTop = below ? log.scrollHeight : top;
      },
      end: refresh(),
      trouble,
    });
  }
})();
