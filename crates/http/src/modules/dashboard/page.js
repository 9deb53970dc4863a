"use strict";
// The panel: each event is a snapshot of counters. Rates of loops come from the server, which knows its last ten seconds; those of
// tables are the difference of two snapshots. Data becomes text nodes only.

const KEPT = 180; // snapshots, one a second: the last three minutes
const LEAST = 30; // of them have room in the charts from the beginning
const QUIET = 5000; // milliseconds without an event: the connection counts as lost
const $ = id => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const sum = list => list.reduce((a, b) => a + b, 0);

// --- Elements ---------------------------------------------------------------------------------------------------------

function el(name, props, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (key in node) node[key] = value; else node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };

// A table with a caption and one row for each of `rows`; cells are texts, numbers or nodes. Rows are replaced in place, so
// that nobody's reading position is lost.
function table(node, caption, columns, rows, empty) {
  if (!node.tHead) {
    node.append(
      el("caption", { className: "unseen" }, caption),
      el("thead", null, el("tr", null, ...columns.map(c => el("th", { scope: "col", className: c.text ? "text" : "" }, c.name)))),
      el("tbody"));
  }
  const body = node.tBodies[0];
  const fresh = rows.length ? rows.map(row => el("tr", null, ...row.map((cell, i) => {
    const content = cell instanceof Node ? cell : String(cell);
    return i === 0
      ? el("th", { scope: "row" }, content)
      : el("td", { className: columns[i].text ? "text" : "", "data-name": columns[i].name }, content);
  }))) : [el("tr", null, el("td", { className: "text quiet", colSpan: columns.length }, empty))];
  fresh.forEach((row, i) => {
    const old = body.rows[i];
    if (!old) body.append(row);
    else if (old.cells.length !== row.cells.length) old.replaceWith(row);
    else for (let c = 0; c < row.cells.length; c++) {
      if (old.cells[c].textContent !== row.cells[c].textContent || row.cells[c].firstElementChild)
        old.cells[c].replaceChildren(...row.cells[c].childNodes);
    }
  });
  while (body.rows.length > fresh.length) body.deleteRow(-1);
}

// --- Words for numbers ------------------------------------------------------------------------------------------------

function count(n) {
  if (!isFinite(n)) return "–";
  if (n >= 1e6) return (n / 1e6).toFixed(n >= 1e7 ? 0 : 1) + " M";
  if (n >= 1e4) return (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + " k";
  return n >= 10 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
}

function bytes(n) {
  if (!isFinite(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return (n >= 10 || unit === 0 ? n.toFixed(0) : n.toFixed(1)) + " " + units[unit];
}

function time(seconds) {
  if (seconds === null || !isFinite(seconds)) return "–";
  const micros = seconds * 1e6;
  if (micros < 1000) return micros.toFixed(0) + " µs";
  if (micros < 1e6) return (micros / 1e3).toFixed(micros < 1e4 ? 1 : 0) + " ms";
  return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
}

function age(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`;
}

// A percentile: the end of the histogram's step in which it lies.
const within = micros => (micros === null ? "–" : "≤ " + time(micros / 1e6));

// A wait: nothing that was measured is no wait.
const waited = micros => (micros > 0 ? within(micros) : "0 µs");

const percent = share => (isFinite(share) ? (share * 100).toFixed(share > 0 && share < .1 ? 1 : 0) : "0") + " %";

// --- From snapshots to figures ----------------------------------------------------------------------------------------

const key = loop => `${loop.worker}.${loop.loop}`;

// What a counter grew by in a second; it began anew if it is less than before. A first snapshot has no other to compare with: its
// rates are unknown, not zero.
const rate = (now, then, seconds) => (seconds ? (now >= then ? now - then : now) / seconds || 0 : NaN);

// Microseconds that this share of the values between two histograms does not exceed; null without values.
function quantile(now, then, share) {
  if (!now || !then || now === then) return null;
  const before = then.count <= now.count ? then.steps : [];
  let i = 0, under = 0;
  const grown = now.steps.map(([end, n]) => {
    while (i < before.length && before[i][0] <= end) under = before[i++][1];
    return [end, n - under];
  });
  const total = grown.length ? grown.at(-1)[1] : 0;
  const rank = Math.max(1, Math.ceil(total * share));
  return total ? grown.find(([, n]) => n >= rank)[0] : null;
}

// The longest of what came between two histograms.
const worst = (now, then) => (now && then && now.count > then.count ? quantile(now, then, 1) || 0 : 0);

function names(loops) {
  const oneEach = loops.every(loop => loop.loop === 0), oneWorker = loops.every(loop => loop.worker === loops[0].worker);
  return loops.map(loop => (oneWorker ? loop.loop : oneEach ? loop.worker : key(loop)).toString());
}

// The queues of the listening sockets: one that all loops share, and one for each loop.
function queues(snapshot, loops) {
  const own = loops.map(() => 0);
  let shared = 0, backlog = 0;
  for (const listener of snapshot.listeners || []) {
    const list = listener.queues || [listener.queue];
    backlog += listener.backlog || 0;
    if (list.length > 1 && list.length === loops.length) list.forEach((n, i) => { own[i] += n; });
    else shared += sum(list);
  }
  return { own, shared, backlog };
}

// `then` is only for waits, of which the server keeps no history.
function figures(now, then) {
  const loops = (now.loops || []).filter(loop => !loop.finishing), seconds = Math.max(now.lately || 0, .001);
  const before = new Map((then.loops || []).map(loop => [`${key(loop)} ${loop.pid}`, loop]));
  const list = names(loops).map((name, i) => {
    const loop = loops[i], old = before.get(`${key(loop)} ${loop.pid}`);
    return {
      name, loop, key: key(loop), share: loop.share_busy || 0,
      requests: (loop.lately_requests || 0) / seconds, accepted: (loop.lately_accepted || 0) / seconds,
      blocked: Math.max(old ? worst(loop.blocked, old.blocked) : 0, loop.awake_for_us || 0),
    };
  });
  // Loops of an older configuration finish what they have.
  const all = name => sum((now.loops || []).map(loop => loop[name] || 0)) / seconds;
  return {
    loops: list, queues: queues(now, loops),
    requests: all("lately_requests"), accepted: all("lately_accepted"), sent: all("lately_sent"),
    mean: list.length ? sum(list.map(l => l.share)) / list.length : 0,
  };
}

// --- The parts of the page --------------------------------------------------------------------------------------------

const tiles = new Map();

// The line ends at the newest; its top is the greatest value, `least` at least, so that next to nothing looks like it.
function tile(name, value, unit, history, least = 1e-9) {
  let parts = tiles.get(name);
  if (!parts) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 100 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(line);
    parts = { value: document.createTextNode(""), unit: el("small"), line };
    $("tiles").append(el("div", { className: "tile" }, el("dt", null, name), el("dd", null, parts.value, " ", parts.unit), svg));
    tiles.set(name, parts);
  }
  parts.value.data = value;
  say(parts.unit, unit);
  const top = Math.max(...history, least), room = Math.max(LEAST, history.length), start = room - history.length;
  const points = history.map((v, i) => `${((start + i) / (room - 1) * 100).toFixed(1)},${(100 - v / top * 96).toFixed(1)}`);
  parts.line.setAttribute("points", points.join(" "));
}

// Over the last snapshots: handshakes, the median round trip of connections, and lost packets of those that were sent.
function showQuic(snapshot, of) {
  const totals = snapshot.totals, base = past.length > 1 ? past[0] : {}, then = base.totals || {};
  const grown = name => (totals[name] || 0) - (then[name] || 0), trips = of => (of.histograms || {}).quic_round_trip;
  const trip = quantile(trips(snapshot), trips(base) || { count: 0, steps: [] }, .5), sent = grown("quic_sent_packets");
  const parts = [`open, ${count(grown("quic_connections"))} new`];
  if (trip !== null) parts.push(`round trip ${within(trip)}`);
  if (sent > 0) parts.push(`${percent(grown("quic_lost_packets") / sent)} lost`);
  if (grown("quic_moved_clients")) parts.push(`${count(grown("quic_moved_clients"))} moved`);
  tile("QUIC", count(totals.quic_open_connections || 0), parts.join(", "), of(p => p.quic));
}

function showTiles(snapshot, f) {
  const of = pick => frames.map(pick), balance = snapshot.balance || {}, totals = snapshot.totals || {};
  tile("Requests", count(f.requests), "a second", of(p => p.requests));
  tile("Connections", count(totals.active_connections || 0), `open, ${count(f.accepted)} new a second`, of(p => p.open));
  if (totals.quic_connections || totals.quic_unfinished_handshakes) showQuic(snapshot, of);
  tile("Accept queue", count(f.waiting), f.queues.backlog ? `of ${count(f.queues.backlog)}` : "", of(p => p.waiting));
  tile("Sent", bytes(f.sent), "a second", of(p => p.sent));
  tile("Held up", past.length > 1 ? waited(f.blocked) : "–", "longest wait", of(p => p.blocked), 1000);
  tile("Imbalance", light(f) ? "–" : (balance.imbalance ?? 0).toFixed(2), balance.threshold ? `alarm from ${balance.threshold}` : "", of(p => p.imbalance), balance.threshold || .5);
}

// Anchors of the colours for 0.1 ms, 1 ms, 10 ms, 100 ms, 1 s: lightness moves one way in either theme.
const SHOWN = 100; // microseconds: shorter waits are the background
const RAMPS = {
  light: [[222, 238, 241], [176, 219, 227], [240, 196, 92], [214, 96, 33], [122, 16, 20]],
  dark: [[18, 44, 51], [26, 84, 97], [150, 108, 30], [232, 120, 44], [255, 222, 200]],
};

function colour(micros) {
  const ramp = RAMPS[dark.matches ? "dark" : "light"];
  const at = Math.min(ramp.length - 1, Math.max(0, Math.log10(Math.max(micros, SHOWN) / SHOWN)));
  const i = Math.min(ramp.length - 2, Math.floor(at)), part = at - i;
  return `rgb(${ramp[i].map((c, k) => Math.round(c + (ramp[i + 1][k] - c) * part)).join()})`;
}

let columns = [];
let picked = -1;

// One column for each loop; made anew only when their number changes.
function layOut(f) {
  const n = f.loops.length, many = n > 24;
  $("chart").style.maxWidth = `${Math.max(n, 4) * 170}px`;
  $("chart").closest("section").classList.toggle("few", n <= 4);
  $("ready").className = many ? "swatch ready" : "";
  say($("ready"), many ? "" : "▾");
  $("bars").classList.toggle("many", many);
  columns = f.loops.map(() => {
    const column = { box: el("div", { className: "column" }), work: el("div", { className: "work-bar" }), queue: el("div", { className: "queue-bar" }), label: el("span"), name: el("b") };
    column.box.append(column.queue, column.work);
    return column;
  });
  $("bars").replaceChildren(el("div", { className: "shared-queue", id: "shared" }), ...columns.map(c => c.box), el("div", { className: "mean-line", id: "mean" }));
  $("names").replaceChildren(...(n <= 24 ? columns.map(c => el("span", null, c.name, n <= 16 ? c.label : "")) : []));
  $("loops-details").open = n <= 8;
  picked = Math.min(picked, n - 1);
}

function showBars(snapshot, f) {
  if (columns.length !== f.loops.length) layOut(f);
  const top = [.05, .1, .25, .5, 1].find(step => Math.max(...f.loops.map(l => l.share), 0) <= step) || 1;
  say($("scale-top"), percent(top));
  const longest = Math.max(16, f.queues.shared, ...f.queues.own), next = new Set((snapshot.balance || {}).next || []);
  const all = snapshot.loops || [];
  f.loops.forEach((l, i) => {
    const c = columns[i];
    c.work.style.height = `${(l.share / top * 100).toFixed(1)}%`;
    c.work.classList.toggle("high", f.mean > .02 && l.share > 2 * f.mean);
    c.queue.style.height = `${(f.queues.own[i] / longest * 40).toFixed(1)}%`;
    c.box.classList.toggle("armed", next.has(all.indexOf(l.loop)));
    c.box.classList.toggle("picked", i === picked);
    say(c.label, percent(l.share));
    say(c.name, l.name);
  });
  $("mean").style.bottom = `${(f.mean / top * 100).toFixed(1)}%`;
  $("shared").style.height = `${(f.queues.shared / longest * 40).toFixed(1)}%`;
  const order = ((snapshot.balance || {}).next || []).map(i => f.loops.find(l => l.loop === all[i])).filter(Boolean).map(l => l.name);
  const policy = (snapshot.balance || {}).policy;
  say($("next"), (order.length ? `Woken next: ${order.slice(0, 6).join(", then ")}${order.length > 6 ? ", …" : ""}`
    : "No loop sleeps: new connections wait in the queue") + (policy ? ` (${policy})` : ""));
}

function showHeat(f) {
  // Without a wait there is nothing to see.
  const empty = frames.every(past => [...past.heat.values()].every(micros => !(micros >= SHOWN)));
  $("heat").hidden = $("ages").hidden = empty;
  if (empty) return;
  const canvas = $("heat"), scale = devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const pen = canvas.getContext("2d"), n = f.loops.length;
  pen.clearRect(0, 0, width, height);
  const gap = (n > 24 ? 1 : 3) * scale, step = (width + gap) / n, room = Math.max(LEAST, frames.length), row = height / room;
  frames.forEach((past, t) => {
    const y = Math.floor((frames.length - 1 - t) * row);
    f.loops.forEach((l, i) => {
      const micros = past.heat.get(l.key);
      if (!(micros >= SHOWN)) return;
      pen.fillStyle = colour(micros);
      pen.fillRect(Math.floor(i * step), y, Math.ceil(step - gap), Math.ceil(row));
    });
  });
  say($("ages-end"), `↓ ${age(room)} ago`);
}

function showPicked(f) {
  const l = f.loops[picked];
  say($("picked"), l ? `Loop ${l.name}: ${percent(l.share)} of its time at work, ${count(l.requests)} requests a second, ${l.loop.open} open, `
    + `${l.loop.inflight} in flight, longest wait ${waited(l.blocked)}, ${STATES[l.loop.state] || l.loop.state}.`
    : "Choose a column, or use the arrow keys, for its figures.");
}

const STATES = {
  armed: "sleeps, ready to be woken", disarmed: "sleeps, leaves new connections to others", awake: "at work",
  full: "full", retired: "takes nothing new", finishing: "finishes what it has",
};

function showLoops(f, snapshot) {
  if (!$("loops-details").open) return;
  const old = (snapshot.loops || []).filter(loop => loop.finishing);
  const row = l => [l.name, l.loop.pid, STATES[l.loop.state] || l.loop.state, percent(l.share), count(l.requests), count(l.accepted),
    l.loop.open, l.loop.inflight, past.length > 1 ? waited(l.blocked) : "–"];
  table($("loops"), "Loops, each with its share of time at work", [
    { name: "Loop" }, { name: "Process" }, { name: "State", text: true }, { name: "At work" }, { name: "Requests/s" }, { name: "New/s" },
    { name: "Open" }, { name: "In flight" }, { name: "Longest wait" },
  ], [...f.loops.map(row), ...old.map(l => [`${key(l)}`, l.pid, "finishes, of an older configuration", "–", "–", "–", l.open, l.inflight, "–"])],
  "No loop has told of itself yet.");
}

function showCulprits(snapshot) {
  const groups = new Map();
  for (const c of snapshot.culprits || []) {
    const what = c.kind === "preempted" ? `the machine, which took the processor away (from ${c.what})` : c.what, running = c.kind === "running";
    const name = `${running} ${what}`, group = groups.get(name) || { what, running, times: 0, worst: 0, last: 0, loops: new Set() };
    group.times++;
    if (c.took_us > group.worst) { group.worst = c.took_us; group.waited = c.waited_us; }
    group.last = Math.max(group.last, c.at);
    group.loops.add(`${c.worker}.${c.loop}`);
    groups.set(name, group);
  }
  // What goes on stands first.
  const rows = [...groups.values()].sort((a, b) => b.running - a.running || b.worst - a.worst).slice(0, 12).map(g => g.running
    ? [g.what, el("span", { className: "bad" }, `${time(g.worst / 1e6)} so far`), "–", g.times, g.loops.size, "now"]
    : [g.what, time(g.worst / 1e6), g.waited === undefined ? "–" : time(g.waited / 1e6), g.times, g.loops.size, `${age(Math.max(0, snapshot.now - g.last))} ago`]);
  section("culprits", true);
  table($("culprits"), "What holds or held loops up, the longest first", [{ name: "What" }, { name: "Longest" }, { name: "Waited for a CPU" },
    { name: "Times" }, { name: "Loops" }, { name: "Last" }], rows, "Nothing has held a loop up for longer than blocked_threshold.");
}

// The snapshot has the rows that tell most; the last row says how many others there are.
function withOthers(rows, now, lists, columns) {
  const others = lists.reduce((sum, list) => sum + ((now.left_out || {})[list] || 0), 0);
  return others ? [...rows, [`… and ${count(others)} with less to do`, ...Array(columns - 1).fill("")]] : rows;
}

function showPlaces(now, then) {
  const seconds = now.now - then.now, old = then.status_zones || {};
  const at = (zone, before, share) => within(quantile(zone.latency, before.latency, share));
  const rows = Object.entries(now.status_zones || {}).map(([name, zone]) => {
    const before = old[name] || zone, is = zone.requests || zone.sessions || {}, was = before.requests || before.sessions || {};
    const failed = rate(is["5xx"] || 0, was["5xx"] || 0, seconds);
    return [name, count(rate(is.total || 0, was.total || 0, seconds)), zone.processing ?? "–", at(zone, before, .5), at(zone, before, .9), at(zone, before, .99), at(zone, before, .999),
      failed > 0 ? el("span", { className: "bad" }, count(failed)) : count(failed), bytes(rate(zone.sent || 0, before.sent || 0, seconds))];
  });
  section("places", true);
  table($("places"), "Servers and locations with a status_zone", [{ name: "Zone" }, { name: "Requests/s" }, { name: "In flight" }, { name: "p50" }, { name: "p90" }, { name: "p99" },
    { name: "p99.9" }, { name: "5xx/s" }, { name: "Sent/s" }], withOthers(rows, now, ["status_zones"], 9), "Give a server or location a name with status_zone, and it is shown here.");
}

const GLYPHS = { up: "●", untried: "○", failing: "✕", down: "✕", unavail: "✕", unhealthy: "✕", checking: "◌", draining: "◐", full: "◕" };

function showPeers(now, then) {
  const seconds = now.now - then.now, rows = [];
  // Of sessions, what is measured is how long it takes to connect.
  const groups = [["upstreams", "requests", "latency", ""], ["stream_upstreams", "sessions", "connect", " (stream)"]].flatMap(([list, asked, took, note]) =>
    Object.entries(now[list] || {}).map(([group, peers]) => ({ group: group + note, peers, before: (then[list] || {})[group] || [], asked, took })));
  for (const { group, peers, before: olds, asked, took } of groups) {
    const before = new Map(olds.map(p => [p.server + p.name, p])), total = p => p[asked]?.total ?? p[asked] ?? 0;
    for (const p of peers) {
      const old = before.get(p.server + p.name) || p, grown = name => Math.max(0, (p[name] || 0) - (old[name] || 0));
      const reused = grown("reused_connections"), all = grown("opened_connections") + reused;
      const at = share => within(quantile(p[took], old[took], share));
      // Of a group of many servers, there is a number of them for each state.
      const states = typeof p.state === "object" ? Object.keys(p.state).filter(word => word !== "total" && p.state[word] > 0) : [p.state];
      const worst = ["failing", "down", "draining", "untried", "up"].find(word => states.includes(word)) || p.state;
      const told = typeof p.state === "object" ? states.map(word => `${p.state[word]} ${word}`).join(", ") : p.state;
      const kind = worst === "up" ? "good" : ["untried", "checking", "draining", "full"].includes(worst) ? "" : "bad";
      const why = p.last_failure ? `${p.failure || "failed"}, ${age(Math.max(0, now.now - p.last_failure))} ago` : "";
      const state = el("span", { className: kind }, `${GLYPHS[worst] || "?"} ${told}${p.backup ? ", backup" : ""}`,
        why ? el("span", { className: "why" }, why) : null);
      rows.push([`${group}: ${p.name && p.name !== p.server ? `${p.name} (${p.server})` : p.server}`, state,
        count(rate(total(p), total(old), seconds)), p.active ?? "–", at(.5), at(.99),
        count(rate(p.fails || 0, old.fails || 0, seconds)), count(rate(p.retries || 0, old.retries || 0, seconds)), all ? percent(reused / all) : "–"]);
    }
  }
  section("peers", rows.length);
  table($("peers"), "Servers behind this one", [{ name: "Group and server" }, { name: "State", text: true }, { name: "Requests/s" }, { name: "In flight" },
    { name: "p50" }, { name: "p99" }, { name: "Failures/s" }, { name: "Retries/s" }, { name: "Reused" }], withOthers(rows, now, ["upstreams", "stream_upstreams"], 9), "");
}

function showCaches(now, then) {
  const seconds = now.now - then.now, served = ["hit", "stale", "updating", "revalidated"], asked = [...served, "miss", "expired", "bypass"];
  const rows = Object.entries(now.caches || {}).map(([name, c]) => {
    const old = (then.caches || {})[name] || c, is = c.requests || {}, was = old.requests || {};
    const grown = keys => sum(keys.map(k => rate(is[k] || 0, was[k] || 0, seconds))), all = grown(asked);
    const fill = c.max_size ? el("span", null, el("meter", { min: 0, max: 1, value: Math.min(1, c.size / c.max_size), ariaLabel: `fill of ${name}` }),
      ` ${bytes(c.size)} of ${bytes(c.max_size)}`) : bytes(c.size || 0);
    return [name, count(all), all ? percent(grown(served) / all) : "–", count(grown(["miss", "expired"])), count(grown(["stale", "updating"])),
      count(rate(c.evicted || 0, old.evicted || 0, seconds)), count(c.entries || 0), fill];
  });
  section("caches", rows.length);
  table($("caches"), "Caches", [{ name: "Cache" }, { name: "Requests/s" }, { name: "Hits" }, { name: "Misses/s" }, { name: "Stale/s" }, { name: "Evicted/s" },
    { name: "Entries" }, { name: "Fill", text: true }], rows, "");
}

// Said aloud by screen readers when it changes: so only when it changes.
function showState(kind, glyph, text) {
  const node = $("state");
  node.className = `state ${kind}`;
  say(node.firstElementChild, glyph);
  say(node.lastElementChild, text);
}

// Loops with next to no work are not compared: also not when the traffic has just ended, and this page is all that is served.
// One busy loop among many is no idle server.
const busiest = f => Math.max(0, ...f.loops.map(l => l.share));
const idle = f => f.requests < 1 && busiest(f) < .2;
const light = f => idle(f) || busiest(f) < .02;

// Health goes before balance. "Even" never stands beside a value from which there is an alarm.
function judge(snapshot, f) {
  const health = snapshot.health || {}, wrong = health.state === "yellow" || health.state === "red";
  const title = `${wrong ? "(!) " : ""}${location.hostname}: weir`;
  if (document.title !== title) document.title = title;
  const findings = wrong ? health.findings || [] : [];
  section("findings", findings.length);
  table($("findings"), "What is wrong, the worst first", [{ name: "What" }, { name: "State", text: true }, { name: "Since" }],
    findings.map(found => [found.text, el("span", { className: found.state === "red" ? "bad" : "" }, found.state), `${age(Math.max(0, snapshot.now - found.since))} ago`]), "");
  if (wrong) return showState(health.state, health.state === "red" ? "✕" : "▲", health.text);
  const balance = snapshot.balance || {}, most = f.loops.find(l => l.share === busiest(f));
  if (light(f)) return showState("", "○", idle(f) ? "Idle" : "Light load");
  if (balance.alarm) return showState("uneven", "▲", `Uneven${most && f.mean ? `: loop ${most.name} works ${(most.share / f.mean).toFixed(1)} times the mean` : ""}`);
  if (balance.threshold && balance.imbalance >= balance.threshold) return showState("", "◐", "Loops differ");
  showState("even", "●", "Even");
}

// A part of the page is there when there is something, or it is said how to get it.
const section = (id, is) => { $(id).closest("section").hidden = !is; };

// --- The stream of snapshots ------------------------------------------------------------------------------------------

const WINDOW = 10; // seconds that all rates and percentiles are of, as the server's own history
const frames = []; // what the charts keep of each snapshot
const past = []; // the snapshots of the window
let source = null;
let heard = 0;

function show(snapshot) {
  const last = past.at(-1);
  // After a pause or another server's answer, what is kept is no past of this one.
  if (last && (snapshot.started !== last.started || snapshot.now <= last.now)) { past.length = 0; frames.length = 0; }
  past.push(snapshot);
  while (past.length > WINDOW + 1) past.shift();
  const now = snapshot, base = past[0], f = figures(now, base);
  f.waiting = f.queues.shared + sum(f.queues.own);
  f.blocked = Math.max(0, ...f.loops.map(l => l.blocked));
  const balance = snapshot.balance || {}, totals = snapshot.totals || {};
  const recent = figures(now, past.at(-2) || now);
  frames.push({
    heat: new Map(recent.loops.map(l => [l.key, l.blocked])), requests: f.requests, open: totals.active_connections || 0, quic: totals.quic_open_connections || 0,
    waiting: f.waiting, sent: f.sent, blocked: Math.max(0, ...recent.loops.map(l => l.blocked)), imbalance: balance.imbalance || 0,
  });
  while (frames.length > KEPT) frames.shift();
  showWindow(now, base);
  const workers = new Set(f.loops.map(l => l.loop.worker)).size, build = snapshot.build || {};
  say($("about"), `${build.version || ""} · ${f.loops.length} loop${f.loops.length === 1 ? "" : "s"} in ${workers} worker${workers === 1 ? "" : "s"}`
    + ` · up ${age(snapshot.uptime || 0)}${snapshot.generation ? ` · ${snapshot.generation} reloads` : ""}`);
  showBars(snapshot, f);
  showTiles(snapshot, f);
  showHeat(f);
  showPicked(f);
  showLoops(f, snapshot);
  showCulprits(snapshot);
  showPlaces(now, base);
  showPeers(now, base);
  showCaches(now, base);
  judge(snapshot, f);
}

// All figures are of one window. Tables and waits are known from the page's first snapshot on.
function showWindow(now, base) {
  const seconds = Math.round(now.now - base.now), known = Math.min(WINDOW, Math.round(now.lately || 0));
  const tables = seconds >= known ? "" : seconds ? `; in tables of the last ${seconds}, as long as this page is open` : "; tables follow in a second";
  say($("window"), `Rates, shares and percentiles are of the last ${known} seconds${tables}.`);
}

function listen() {
  if (source || document.hidden || $("pause").ariaPressed === "true") return;
  heard = Date.now();
  source = new EventSource(location.href);
  source.onmessage = event => { heard = Date.now(); show(JSON.parse(event.data)); };
}

function stop() {
  if (source) source.close();
  source = null;
}

// Who has turned to another tab, or has paused, asks the server for nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
setInterval(() => {
  if (!source || Date.now() - heard < QUIET) return;
  showState("lost", "✕", "No answer from the server");
  // A browser gives up for good where a server refuses.
  if (source.readyState === EventSource.CLOSED) { stop(); listen(); }
}, 1000);

$("pause").addEventListener("click", () => {
  const paused = $("pause").ariaPressed !== "true";
  $("pause").ariaPressed = String(paused);
  say($("pause"), paused ? "Go on" : "Pause");
  if (paused) { stop(); showState("", "❙❙", "Paused"); } else listen();
});

$("chart").addEventListener("keydown", event => {
  const to = { ArrowRight: picked + 1, ArrowLeft: picked - 1, Home: 0, End: columns.length - 1, Escape: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  pick(Math.min(Math.max(to, event.key === "Escape" ? -1 : 0), columns.length - 1));
});

$("chart").addEventListener("pointerdown", event => {
  const box = $("bars").getBoundingClientRect();
  pick(Math.min(columns.length - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns.length))));
});

function pick(index) {
  picked = index;
  columns.forEach((c, i) => c.box.classList.toggle("picked", i === picked));
  if (past.length) showPicked(figures(past.at(-1), past[0]));
}

function paint() {
  $("ramp").style.background = `linear-gradient(90deg, ${[1e2, 1e3, 1e4, 1e5, 1e6].map(colour).join()})`;
}

dark.addEventListener("change", paint);
paint();
listen();
