// The timeline of one lock: who held it and who waited in the last hour.
import { $, el, setText, keyed, ownerOf, hostOf, duration, timeOfDay, dateAndTime, visible, plural, number, shortened } from "./dom.js";
import { state, idOf, now, isStale } from "./state.js";
import { ui, choose, chosenLines } from "./ui.js";
import { nameOfKey } from "./detail.js";
import { History, isBad } from "./history.js";

const hour = 3600e3;
const minSpan = 100; // of the visible part, in milliseconds
const firstSpan = 30e3; // at least, when a lock is opened
const left = 130, leftNarrow = 84, axis = 20, rowHeight = 22;
const maxRows = 60;
const maxListed = 200;
const maxOffered = 50;

// spansOf returns when each entry waited and held, from events and from the line as it is now. Times are in
// milliseconds. A start before the first event, and an end in the future, are undefined.
export function spansOf(events, line, until) {
	const open = new Map(), all = [];
	const take = (entry) => {
		const id = idOf(entry);
		const span = open.get(id) ?? { entry, id };
		span.entry = entry;
		open.set(id, span);
		return span;
	};
	for (const e of events) {
		const at = Date.parse(e.time), span = take(e.entry);
		if (e.what === "waits") {
			span.waitFrom = at;
			span.waited = true;
		} else if (e.what === "holds") {
			if (span.waited) span.waitTo = at;
			else if (e.waited_seconds) Object.assign(span, { waited: true, waitFrom: at - e.waited_seconds * 1000, waitTo: at });
			Object.assign(span, { held: true, holdFrom: at });
		} else {
			if (e.what === "ended") {
				if (!span.held && e.held_seconds) span.holdFrom = at - e.held_seconds * 1000;
				span.held = true;
				span.holdTo = at;
			} else {
				if (!span.waited && e.waited_seconds) span.waitFrom = at - e.waited_seconds * 1000;
				span.waited = true;
				span.waitTo = at;
			}
			Object.assign(span, { ended: true, cause: e.cause ?? "", bad: isBad(e) });
			all.push(span);
			open.delete(span.id);
		}
	}
	const there = new Set();
	for (const [entries, holds] of [[line?.holders ?? [], true], [line?.waiters ?? [], false]]) {
		for (const entry of entries) {
			const span = take(entry);
			there.add(span);
			if (holds && !span.held) { // admitted before the first event that is known
				const at = Date.parse(entry.owner?.obtained);
				Object.assign(span, { held: true, holdFrom: at <= until ? at : undefined });
			} else if (!holds && !span.waited) {
				const at = Date.parse(entry.owner?.since);
				Object.assign(span, { waited: true, waitFrom: at <= until ? at : undefined });
			}
		}
	}
	for (const span of open.values()) if (there.has(span)) all.push(span);
	return all.sort((a, b) => (a.waitFrom ?? a.holdFrom ?? 0) - (b.waitFrom ?? b.holdFrom ?? 0));
}

// gapsOf returns when nobody held the lock, between the first and the last hold.
export function gapsOf(spans, until) {
	const held = spans.filter((s) => s.held && s.holdFrom !== undefined).sort((a, b) => a.holdFrom - b.holdFrom);
	const gaps = [];
	let end;
	for (const s of held) {
		if (end !== undefined && s.holdFrom > end) gaps.push({ from: end, to: s.holdFrom });
		end = Math.max(end ?? 0, s.holdTo ?? until);
	}
	if (end < until) gaps.push({ from: end, to: until });
	return gaps;
}

const percentile = (sorted, p) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];

// lanesOf distributes spans to as few lanes as possible, so that none overlap.
function lanesOf(spans, from, to) {
	const lanes = [];
	for (const span of spans) {
		let lane = lanes.findIndex((end) => end <= from(span));
		if (lane < 0) lane = lanes.length;
		lanes[lane] = to(span);
		span.lane = lane;
	}
	return Math.max(1, lanes.length);
}

let key, history, spans = [], gaps = [], rows = [];
let from = 0, to = 0, follows = true; // follows: the right edge is now
let parts, canvas, pointer = null, drag = null, hotspots = [], observer, drawn;

export const timelineView = {
	show(root) {
		key = undefined;
		build(root);
		observer = new ResizeObserver(draw);
		observer.observe(parts.chart);
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
		this.update();
	},
	hide() {
		history?.close();
		history = undefined;
		observer.disconnect();
		matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", draw);
	},
	update() {
		if (ui.key !== key) open();
		if (!key) { offer(); return; }
		history.update();
		refresh();
	},
	key(name) {
		const actions = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: all };
		if (!key || !actions[name]) return false;
		actions[name]();
		return true;
	},
};

function build(root) {
	const button = (text, label, f) => el("button", { type: "button", "aria-label": label, title: label, onclick: f }, text);
	const sign = (kind, text) => el("span", {}, el("i", { class: kind }), text);
	canvas = el("canvas", { id: "chart", tabIndex: 0, role: "img", "aria-label": "who held the lock and who waited; the table below has the same" });
	parts = {
		title: el("h2", { class: "full", id: "timeline-title" }), summary: el("p", { id: "timeline-summary", class: "dim" }),
		zoom: el("span", {}, button("+", "zoom in", () => zoom(0.6)), " ", button("−", "zoom out", () => zoom(1 / 0.6)), " ", button("all", "the whole hour", all)),
		chart: el("div", { class: "chart" }, canvas), tip: el("div", { id: "tip", hidden: true }), note: el("p", { class: "dim" }),
		list: el("tbody", { id: "spans" }), offers: el("ul", { id: "offers", class: "events" }),
	};
	parts.shown = el("div", {}, el("div", { class: "bar" }, parts.title, parts.zoom), parts.summary,
		el("div", { class: "key" }, sign("hatched", "waited"), sign("held", "held"), sign("ended", "lost or broken"),
			el("span", { class: "hint" }, "wheel to zoom, drag to move, double click for the whole hour")),
		parts.chart, parts.tip, parts.note,
		el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ...["from", "owner", "waited", "held", "end"].map((t) => el("th", {}, t)))), parts.list)));
	parts.choice = el("div", { class: "choice" }, el("p", {}, "Choose a lock:"), parts.offers);
	root.replaceChildren(parts.shown, parts.choice);
	listen();
}

function open() {
	key = ui.key;
	history?.close();
	history = key ? new History(key, () => { if (history?.events) { fit(); refresh(); } }) : undefined;
	from = to = 0;
	follows = true;
	spans = [];
	gaps = [];
	parts.shown.hidden = !key;
	parts.choice.hidden = Boolean(key);
	if (key) setText(parts.title, state.lines.get(key)?.label ?? nameOfKey(key));
}

// offer shows some locks to choose from.
function offer() {
	keyed(parts.offers, chosenLines(true).slice(0, maxOffered), (line) => line.key,
		(line) => el("li", {}, el("button", { type: "button", class: "link", onclick: () => choose({ key: line.key }) })),
		(item, line) => setText(item.firstChild, line.label));
}

// fit selects the part to show at first: all that is known, but at least half a minute.
function fit() {
	if (from) return;
	const first = Math.min(...history.events.map((e) => Date.parse(e.time) - (e.held_seconds || e.waited_seconds || 0) * 1000), now() - firstSpan);
	to = now();
	from = Math.max(to - hour, first - (to - first) * 0.05);
}

function refresh() {
	if (!history.events) {
		setText(parts.summary, history.error || "Reading the history…");
		return;
	}
	const at = now();
	spans = spansOf(history.events, state.lines.get(key), at);
	gaps = gapsOf(spans, at);
	if (follows) {
		from += at - to;
		to = at;
	}
	arrange(at);
	summarize(at);
	list(at);
	draw();
}

function arrange(at) {
	const holds = spans.filter((s) => s.held).map((s) => ({ span: s, from: s.holdFrom ?? at - hour, to: s.holdTo ?? at })).sort((a, b) => a.from - b.from);
	rows = [{ label: "the lock", lanes: lanesOf(holds, (h) => h.from, (h) => h.to), boxes: holds.map((h) => ({ ...h, kind: "held", text: hostOf(h.span.entry) })) }];
	const owners = new Map();
	for (const span of spans) {
		const o = span.entry.owner ?? {}, label = span.entry.foreign ? "unknown" : visible(`${o.host || o.user || "unknown"} ${o.command || ""}`).trim();
		if (!owners.has(label)) owners.set(label, []);
		owners.get(label).push(span);
	}
	for (const [label, own] of [...owners].slice(0, maxRows)) {
		const begin = (s) => s.waitFrom ?? s.holdFrom ?? at - hour, end = (s) => s.holdTo ?? s.waitTo ?? at;
		own.sort((a, b) => begin(a) - begin(b));
		const ends = (s) => (s.ended ? s.holdTo ?? s.waitTo ?? at : at);
		const lanes = lanesOf(own, begin, ends), boxes = [];
		for (const span of own) {
			if (span.waited) boxes.push({ span, lane: span.lane, kind: "wait", from: span.waitFrom ?? at - hour, to: span.waitTo ?? (span.held ? span.holdFrom : undefined) ?? end(span) });
			if (span.held) boxes.push({ span, lane: span.lane, kind: "held", from: span.holdFrom ?? at - hour, to: span.holdTo ?? at });
		}
		rows.push({ label, lanes, boxes });
	}
	setText(parts.note, owners.size > maxRows ? `and ${number(owners.size - maxRows)} more owners` : "");
	const height = axis + rows.reduce((sum, row) => sum + row.lanes * rowHeight, 0) + 4;
	if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
}

function summarize(at) {
	const begin = at - hour, waits = [];
	let holds = 0, lost = 0, broken = 0;
	for (const s of spans) {
		holds += Boolean(s.held);
		lost += s.cause === "lost";
		broken += s.cause === "broken";
		if (s.waited && s.waitFrom !== undefined) waits.push(((s.waitTo ?? at) - Math.max(begin, s.waitFrom)) / 1000);
		else if (s.held && s.ended) waits.push(0);
	}
	waits.sort((a, b) => a - b);
	const text = [plural(holds, "hold"), plural(lost, "loss", "losses"), plural(broken, "break"),
		waits.length ? `waits: half up to ${duration(percentile(waits, 0.5))}, 95 % up to ${duration(percentile(waits, 0.95))}` : ""];
	setText(parts.summary, text.filter(Boolean).join(" · "));
	canvas.dataset.holds = holds;
	canvas.dataset.gaps = gaps.length;
}

const waitOf = (s, at) => (s.waited ? (s.waitFrom === undefined ? "not known" : duration(((s.waitTo ?? at) - s.waitFrom) / 1000)) : "");
const holdOf = (s, at) => (s.held ? (s.holdFrom === undefined ? "not known" : duration(((s.holdTo ?? at) - s.holdFrom) / 1000)) : "");
const endOf = (s) => (s.ended ? s.cause || (s.held ? "ended" : "left") : s.held ? "holds" : "waits");

function list(at) {
	keyed(parts.list, spans.slice(-maxListed).reverse(), (s) => s.id,
		() => el("tr", {}, ...Array.from({ length: 5 }, () => el("td"))),
		(row, s) => {
			row.className = s.bad ? "bad" : "";
			const texts = [timeOfDay(s.waitFrom ?? s.holdFrom ?? NaN) || "before", ownerOf(s.entry), waitOf(s, at), holdOf(s, at), endOf(s)];
			texts.forEach((text, i) => setText(row.children[i], text));
		});
}

function tipOf(span, at) {
	const lines = [ownerOf(span.entry), `token ${span.entry.token}, ${span.entry.mode}`];
	if (span.entry.owner?.reason) lines.push(visible(span.entry.owner.reason));
	if (span.waited) lines.push(`waited ${waitOf(span, at)}${span.waitFrom === undefined ? "" : `, from ${dateAndTime(span.waitFrom)}`}`);
	if (span.held) lines.push(`held ${holdOf(span, at)}${span.holdFrom === undefined ? "" : `, from ${dateAndTime(span.holdFrom)}`}`);
	return lines.concat(endOf(span)).join("\n");
}

// draw draws in the next frame.
function draw() {
	if (!drawn) drawn = requestAnimationFrame(() => { drawn = undefined; if (key && canvas.isConnected) drawNow(); });
}

const leftOf = () => (canvas.clientWidth < 600 ? leftNarrow : left);

function drawNow() {
	const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight, x0 = leftOf(), at = now();
	if (!(to > from) || !width) return;
	canvas.dataset.seconds = (to - from) / 1000; // of the visible part
	canvas.width = width * ratio;
	canvas.height = height * ratio;
	const g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
	const color = (name) => style.getPropertyValue("--" + name);
	const colors = { held: color("held"), bad: color("bad"), ink: color("ink"), dim: color("dim"), paper: color("paper"), faint: color("faint"), line: color("line") };
	g.scale(ratio, ratio);
	g.font = "12px system-ui, sans-serif";
	g.textBaseline = "middle";
	const hatch = hatchOf(g, color("wait"));
	const x = (t) => x0 + ((t - from) / (to - from)) * (width - x0);
	hotspots = [];
	drawAxis(g, x, width, height, x0, colors);
	let top = axis;
	rows.forEach((row, n) => {
		const rowTop = top, rowEnd = top + row.lanes * rowHeight;
		if (n % 2) { g.fillStyle = colors.faint; g.fillRect(0, rowTop, width, rowEnd - rowTop); }
		if (n === 0) for (const gap of gaps) {
			const a = Math.max(x0, x(gap.from)), b = Math.min(width, x(gap.to));
			if (b <= a) continue;
			g.fillStyle = colors.line;
			g.fillRect(a, rowTop + rowHeight / 2 - 1, b - a, 2);
			hotspots.push({ a, b, y0: rowTop, y1: rowTop + rowHeight, text: () => `free for ${duration((gap.to - gap.from) / 1000)}\nfrom ${dateAndTime(gap.from)}` });
		}
		const last = {}; // by kind and lane, where the last box ended: boxes within one pixel are drawn once
		for (const box of row.boxes) {
			if (box.to < from || box.from > to) continue;
			const y = rowTop + box.lane * rowHeight + 4, h = rowHeight - 8;
			const a = Math.max(x0, x(box.from)), b = Math.max(a + 1.5, Math.min(width, x(box.to))), place = box.kind + box.lane;
			const bad = box.span.bad && (box.kind === "held" || !box.span.held);
			if (b <= last[place] && !bad) continue;
			last[place] = Math.max(last[place] ?? 0, Math.floor(b));
			g.fillStyle = box.kind === "held" ? colors.held : hatch;
			g.fillRect(a, y, b - a, h);
			if (bad && box.to <= to) { g.fillStyle = colors.bad; g.fillRect(Math.max(a, b - 5), y - 3, Math.min(5, b - a), h + 6); }
			if (box.kind === "held") { g.fillStyle = colors.paper; g.fillRect(a, y, 1, h); }
			if (box.text && b - a > 30) {
				g.save();
				g.beginPath();
				g.rect(a, y, b - a - 6, h);
				g.clip();
				g.fillStyle = colors.paper;
				g.fillText(box.text, a + 4, y + h / 2 + 0.5);
				g.restore();
			}
			hotspots.push({ a: a - 1, b: Math.max(b, a + 4), y0: y - 4, y1: y + h + 4, text: () => tipOf(box.span, at) });
		}
		top = rowEnd;
	});
	g.fillStyle = colors.paper;
	g.fillRect(0, 0, x0 - 1, height);
	g.fillStyle = colors.ink;
	top = axis;
	for (const row of rows) {
		g.fillText(fitted(g, row.label, x0 - 12), 6, top + rowHeight / 2);
		top += row.lanes * rowHeight;
	}
	if (pointer !== null && pointer > x0) {
		const text = timeOfDay(from + ((pointer - x0) / (width - x0)) * (to - from)), w = g.measureText(text).width + 8, p = Math.min(pointer, width - w);
		g.fillStyle = colors.ink;
		g.fillRect(pointer, axis, 0.5, height);
		g.fillRect(p, 0, w, axis - 2);
		g.fillStyle = colors.paper;
		g.fillText(text, p + 4, axis / 2);
	}
	if (isStale()) { // nothing is known about what is right of this
		g.fillStyle = colors.dim;
		g.fillText("not up to date", Math.max(x0, width - 100), axis / 2);
	}
}

// fitted cuts a text to a width.
function fitted(g, text, width) {
	for (let max = 40; max > 3; max--) {
		const cut = shortened(text, max);
		if (g.measureText(cut).width <= width) return cut;
	}
	return "…";
}

function hatchOf(g, color) {
	const size = 8, tile = el("canvas", { width: size, height: size }), t = tile.getContext("2d");
	t.strokeStyle = color;
	t.lineWidth = 3;
	for (const d of [-size, 0, size]) {
		t.beginPath();
		t.moveTo(d, size);
		t.lineTo(d + size, 0);
		t.stroke();
	}
	return g.createPattern(tile, "repeat");
}

const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];

function drawAxis(g, x, width, height, x0, colors) {
	const rough = ((to - from) / 1000) * (80 / (width - x0)), step = (steps.find((s) => s >= rough) ?? 3600) * 1000;
	for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
		g.fillStyle = colors.faint;
		g.fillRect(x(t), 0, 1, height);
		g.fillStyle = colors.dim;
		const text = timeOfDay(t);
		g.fillText(step < 1000 ? `${text}.${Math.floor((t % 1000) / 100)}` : step >= 60e3 ? text.slice(0, 5) : text, x(t) + 3, axis / 2);
	}
}

// show selects the visible part, within the last hour.
function show(a, b) {
	const end = now(), span = Math.min(Math.max(b - a, minSpan), hour);
	from = Math.max(end - hour, Math.min(a, end - span));
	to = from + span;
	follows = to >= end - span / 200;
	draw();
}
function zoom(by, at) {
	const center = at ?? (follows ? to : (from + to) / 2);
	show(center - (center - from) * by, center + (to - center) * by);
}
function move(part) { show(from + part * (to - from), to + part * (to - from)); }
function all() { show(now() - hour, now()); }

function listen() {
	const spot = (e) => hotspots.findLast((s) => e.offsetX > leftOf() && e.offsetX >= s.a && e.offsetX <= s.b && e.offsetY >= s.y0 && e.offsetY <= s.y1);
	canvas.addEventListener("wheel", (e) => {
		e.preventDefault();
		if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { move(e.deltaX / canvas.clientWidth); return; }
		const x0 = leftOf();
		zoom(Math.exp(e.deltaY / 400), from + ((e.offsetX - x0) / (canvas.clientWidth - x0)) * (to - from));
	}, { passive: false });
	canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, from, to }; canvas.setPointerCapture(e.pointerId); });
	for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
	canvas.addEventListener("pointermove", (e) => {
		pointer = e.offsetX;
		if (drag) {
			const by = ((drag.x - e.clientX) / (canvas.clientWidth - leftOf())) * (drag.to - drag.from);
			show(drag.from + by, drag.to + by);
		}
		draw();
		const hotspot = drag ? undefined : spot(e), tip = $("tip");
		tip.hidden = !hotspot;
		if (!hotspot) return;
		tip.textContent = hotspot.text();
		tip.style.left = `${Math.max(0, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
		tip.style.top = `${e.clientY + 18 + tip.offsetHeight < innerHeight ? e.clientY + 18 : Math.max(0, e.clientY - tip.offsetHeight - 10)}px`;
	});
	canvas.addEventListener("pointerleave", () => { pointer = null; parts.tip.hidden = true; draw(); });
	canvas.addEventListener("dblclick", all);
}
