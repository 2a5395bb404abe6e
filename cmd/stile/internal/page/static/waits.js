// The waits view: holders that wait for other locks meanwhile, as a graph of locks. A cycle is a deadlock.
import { el, svg, setText, keyed, ownerOf, visible, shortened, duration, number } from "./dom.js";
import { get } from "./api.js";
import { isStale, now } from "./state.js";
import { choose } from "./ui.js";

const interval = 2000;
const maxEdges = 150; // drawn
const maxListed = 300;
const box = { width: 170, height: 34, right: 120, below: 26 };

let root, parts, timer, asking = false, last = "";

export const waitsView = {
	show(element) {
		root = element;
		last = "";
		parts = {
			summary: el("p", { id: "waits-summary" }, "Reading the waits…"), cycles: el("div", { id: "cycles" }),
			graph: el("div", { class: "graph", id: "graph", hidden: true }), list: el("ul", { class: "events", id: "waits" }), note: el("p", { class: "dim" }),
		};
		root.replaceChildren(el("h2", {}, "Holders that wait for other locks"), parts.summary, parts.cycles, parts.graph, parts.list, parts.note);
		ask();
		timer = setInterval(ask, interval);
	},
	hide() { clearInterval(timer); },
	update() {},
};

async function ask() {
	if (asking || document.hidden || isStale()) return;
	asking = true;
	try {
		show(await get("waits"));
	} catch (err) {
		setText(parts.summary, visible(err.message));
	}
	asking = false;
}

function show({ waits, cycles, omitted = 0, omitted_cycles: omittedCycles = 0 }) {
	const allWaits = waits.length + omitted, allCycles = cycles.length + omittedCycles;
	const waiting = { 0: "No holder waits", 1: "1 holder waits" }[allWaits] ?? `${number(allWaits)} holders wait`;
	const deadlocks = { 0: "", 1: ", and there is a deadlock" }[allCycles] ?? `, and there are ${number(allCycles)} deadlocks`;
	const legend = waits.length ? " An arrow leads from a lock that is held to the lock that its holder waits for." : "";
	setText(parts.summary, `${waiting} for another lock${deadlocks}.${legend}`);
	keyed(parts.cycles, cycles, (names) => JSON.stringify(names),
		(names) => el("p", { class: "deadlock", role: "alert" }, `Deadlock: ${[...names, names[0]].map(visible).join(" → ")}`));
	keyed(parts.list, waits.slice(0, maxListed), (w) => `${w.waiter.session} ${w.waiter.token} ${w.waits_for}`, () => el("li"), (item, w) => {
		const seconds = Math.floor((now() - Date.parse(w.since)) / 1000);
		const time = seconds >= 1 ? `${duration(seconds)} ` : "";
		setText(item, `${ownerOf(w.waiter)} holds ${w.holds.map(visible).join(", ")} and has waited ${time}for ${visible(w.waits_for)}`);
	});
	const unlisted = allWaits - Math.min(waits.length, maxListed);
	setText(parts.note, unlisted > 0 ? `and ${number(unlisted)} more` : "");
	const edges = waits.flatMap((w) => w.holds.map((held) => ({ from: held, to: w.waits_for, entry: w.waiter }))).slice(0, maxEdges);
	const shape = JSON.stringify([edges.map((e) => [e.from, e.to, ownerOf(e.entry)]), cycles]);
	if (shape === last) return;
	last = shape;
	parts.graph.hidden = edges.length === 0;
	parts.graph.replaceChildren(...(edges.length ? [draw(edges, cycles)] : []));
}

// levelsOf places each lock right of all locks whose holders wait for it, as far as there is no cycle.
function levelsOf(edges) {
	const before = new Map();
	for (const { from, to } of edges) {
		if (!before.has(from)) before.set(from, []);
		before.set(to, (before.get(to) ?? []).concat(from));
	}
	const levels = new Map(), visiting = new Set();
	const levelOf = (name) => {
		if (levels.has(name)) return levels.get(name);
		if (visiting.has(name)) return -1;
		visiting.add(name);
		const level = 1 + Math.max(-1, ...before.get(name).map(levelOf));
		visiting.delete(name);
		levels.set(name, level);
		return level;
	};
	for (const name of before.keys()) levelOf(name);
	return levels;
}

function draw(edges, cycles) {
	const inCycle = new Set(), red = new Set();
	for (const names of cycles) names.forEach((name, i) => {
		inCycle.add(name);
		red.add(JSON.stringify([name, names[(i + 1) % names.length]]));
	});
	const places = new Map(), heights = [];
	for (const [name, level] of levelsOf(edges)) {
		heights[level] = (heights[level] ?? 0) + 1;
		places.set(name, { x: 12 + level * (box.width + box.right), y: 12 + (heights[level] - 1) * (box.height + box.below) });
	}
	const width = 24 + heights.length * (box.width + box.right) - box.right, back = edges.some((e) => places.get(e.to).x <= places.get(e.from).x);
	const height = 24 + Math.max(1, ...heights.filter(Boolean)) * (box.height + box.below) + (back ? 40 : 0);
	const arrow = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" };
	const end = (id, kind) => svg("marker", { ...arrow, id, class: kind }, svg("path", { d: "M0 0 8 4 0 8z" }));
	const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "the list below has the same" },
		svg("defs", {}, end("end", "end"), end("red-end", "cycle-end")));
	for (const { from, to, entry } of edges) {
		const a = places.get(from), b = places.get(to), isRed = red.has(JSON.stringify([from, to]));
		const x1 = a.x + box.width, y1 = a.y + box.height / 2, x2 = b.x, y2 = b.y + box.height / 2;
		let line = `M${x1} ${y1}C${x1 + 60} ${y1} ${x2 - 60} ${y2} ${x2 - 1} ${y2}`, label = { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 5 };
		if (b.x <= a.x) { // back, below the boxes
			const bottom = Math.max(a.y, b.y) + box.height + 34, from = a.x + box.width / 2, to = b.x + box.width / 2;
			line = `M${from} ${a.y + box.height}C${from} ${bottom} ${to} ${bottom} ${to} ${b.y + box.height + 1}`;
			label = { x: (from + to) / 2, y: (6 * bottom + a.y + b.y + 2 * box.height) / 8 - 5 };
		}
		const path = svg("path", { d: line, class: isRed ? "cycle" : "", "marker-end": `url(#${isRed ? "red-end" : "end"})` });
		const title = svg("title");
		title.textContent = ownerOf(entry);
		path.append(title);
		const text = svg("text", { x: label.x, y: label.y, "text-anchor": "middle", class: "by" });
		text.textContent = shortened(ownerOf(entry), 18);
		drawing.append(path, text);
	}
	for (const [name, { x, y }] of places) {
		const title = svg("title"), text = svg("text", { x: 10, y: 22 });
		title.textContent = visible(name);
		text.textContent = shortened(visible(name), 22);
		const node = svg("svg", { x, y, width: box.width, height: box.height, class: inCycle.has(name) ? "node cycle" : "node" },
			title, svg("rect", { x: 1, y: 1, width: box.width - 2, height: box.height - 2, rx: 5 }), text);
		node.addEventListener("click", () => choose({ view: "lines", key: keyOf(name), open: true }));
		drawing.append(node);
	}
	return drawing;
}

// keyOf returns the key of a name that is valid UTF-8.
function keyOf(name) {
	return btoa(String.fromCharCode(...new TextEncoder().encode(name))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
