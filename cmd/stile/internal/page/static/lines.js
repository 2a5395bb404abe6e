// The live lines: one row for each lock, with its holders and behind them its waiters. Only rows in view
// are in the document.
import { el, setText, visible, ownerOf, hostOf, duration, number, plural } from "./dom.js";
import { state, idOf, waitersOf, now, heldSince, isStale, askForLeases } from "./state.js";
import { ui, choose, chosenLines } from "./ui.js";

const overscan = 4; // rows above and below what is in view
const settled = 250; // milliseconds after which an entry is animated: not while it is scrolled past
const renewalSlack = 400; // milliseconds by which two readings of the same lease differ

const narrow = matchMedia("(max-width: 640px)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const limits = () => (narrow.matches ? { height: 74, holders: 2, waiters: 6 } : { height: 44, holders: 4, waiters: 14 });

let viewport, spacer, summary, empty, waitedOnly;
let rows = new Map(); // by key
let lines = [];
let followed = ""; // the key of the selection that was last scrolled into view

function build(root) {
	waitedOnly = el("button", { type: "button", class: "toggle", id: "only-waited", onclick: () => choose({ onlyWaited: !ui.onlyWaited }) }, "only waited for");
	summary = el("span", { id: "summary" });
	empty = el("p", { id: "empty", class: "empty" });
	spacer = el("div", { class: "spacer" });
	viewport = el("div", {
		id: "lines", class: "viewport", tabIndex: 0, role: "listbox", "aria-label": "locks",
		onscroll: () => { render(); ask(); },
	}, spacer);
	root.replaceChildren(el("div", { class: "bar" }, summary, waitedOnly), empty, viewport);
}

let asking;
function ask() { // for the leases of rows that have come into view
	clearTimeout(asking);
	asking = setTimeout(askForLeases, settled);
}

let resizing;

export const linesView = {
	show(root) {
		build(root);
		rows = new Map();
		followed = "";
		resizing = new ResizeObserver(() => render());
		resizing.observe(viewport);
		this.update(new Set(), true);
		ask();
	},
	hide() {
		resizing.disconnect();
		for (const row of rows.values()) drop(row);
		rows = new Map();
	},
	update(changed, came) {
		lines = chosenLines(came || (changed.size > 0 && (ui.query || ui.onlyWaited)));
		summarize();
		render(changed);
	},
	keys: () => [...rows.keys()],
};

function summarize() {
	let waiters = 0, waited = 0, held = 0;
	for (const line of lines) {
		held += line.holders.length > 0;
		waiters += waitersOf(line);
		waited += line.waiters.length > 0;
	}
	const some = lines.length < state.lines.size ? ` of ${number(state.lines.size)}` : "";
	setText(summary, `${number(lines.length)}${some} ${state.lines.size === 1 ? "lock" : "locks"} · ${number(held)} held · ${number(waited)} waited for, by ${plural(waiters, "waiter")}`);
	waitedOnly.setAttribute("aria-pressed", ui.onlyWaited);
	empty.hidden = lines.length > 0;
	viewport.hidden = lines.length === 0;
	if (lines.length) return;
	if (state.lines.size) setText(empty, "No lock matches.");
	else if (state.read) setText(empty, "No lock is held or waited for. Try: stile run demo -- sleep 30");
	else setText(empty, state.storeError || state.serverError ? "Nothing is known about the locks yet." : "Reading the locks…");
}

// render shows the rows in view. changed are the keys of lines whose rows must be filled again.
function render(changed) {
	const { height } = limits();
	const index = ui.key && ui.key !== followed ? lines.findIndex((line) => line.key === ui.key) : -1;
	spacer.style.height = `${lines.length * height}px`;
	if (index >= 0) {
		followed = ui.key;
		const top = index * height;
		if (top < viewport.scrollTop) viewport.scrollTop = top;
		else if (top + height > viewport.scrollTop + viewport.clientHeight) viewport.scrollTop = top + height - viewport.clientHeight;
	}
	const first = Math.max(0, Math.floor(viewport.scrollTop / height) - overscan);
	const last = Math.min(lines.length, Math.ceil((viewport.scrollTop + viewport.clientHeight) / height) + overscan);
	const inView = new Map();
	for (let i = first; i < last; i++) inView.set(lines[i].key, i);
	for (const [key, row] of rows) {
		if (inView.has(key)) continue;
		drop(row);
		rows.delete(key);
	}
	const moving = [];
	for (const [key, i] of inView) {
		let row = rows.get(key);
		const fresh = !row;
		if (fresh) {
			row = newRow(key);
			rows.set(key, row);
			spacer.append(row.node);
		}
		if (row.index !== i || row.height !== height) {
			row.index = i;
			row.height = height;
			row.node.style.transform = `translateY(${i * height}px)`;
			row.node.setAttribute("aria-posinset", i + 1);
		}
		row.node.setAttribute("aria-selected", key === ui.key);
		if (fresh || changed?.has(key)) moving.push({ row, fresh });
		else refresh(row, lines[i]);
	}
	viewport.setAttribute("aria-activedescendant", rows.has(ui.key) ? `row-${ui.key}` : "");
	// All positions are read first, then all rows are changed, so that there are two layouts only.
	const animated = !still.matches;
	for (const m of moving) if (animated && !m.fresh) m.before = positions(m.row);
	for (const m of moving) fill(m.row, state.lines.get(m.row.key));
	for (const m of moving) if (m.before) m.after = positions(m.row);
	for (const m of moving) if (m.before) move(m);
}

function newRow(key) {
	const row = {
		key, entries: new Map(),
		name: el("span", { class: "name" }), use: el("span", { class: "use" }), queue: el("span", { class: "queue" }),
		line: el("span", { class: "line" }), more: el("span", { class: "more" }),
	};
	row.node = el("div", {
		class: "row", role: "option", id: `row-${key}`, data: { key }, onclick: () => choose({ key, open: true }),
	}, row.name, row.use, row.queue, row.line);
	return row;
}

// An animation of an element that is not in the document any more would still cost time in each frame.
function dropEntry(shown) {
	shown.animation?.cancel();
	shown.node.remove();
}

function drop(row) {
	for (const shown of row.entries.values()) dropEntry(shown);
	row.node.remove();
}

// useOf says how many hold the lock, and of how many slots.
export function useOf(line) {
	const mode = (line.holders[0] ?? line.waiters[0])?.mode ?? "";
	const slots = mode.startsWith("slot/") ? +mode.slice(5) : 0;
	if (slots) return `${line.holders.length} of ${line.limit > 0 && line.limit < slots ? line.limit : slots} slots`;
	if (mode === "shared" && line.holders.length) return plural(line.holders.length, "reader");
	if (!line.holders.length) return "free";
	return line.holders[0].owner?.lingers ? "held or kept" : "held"; // which of them, only the owner knows
}

function fill(row, line) {
	const { holders, waiters } = limits();
	setText(row.name, line.label);
	if (row.name.title !== line.label) row.name.title = line.label;
	setText(row.use, useOf(line));
	setText(row.queue, line.waiters.length ? `${number(waitersOf(line))} waiting` : "");
	row.node.classList.toggle("free", !line.holders.length);
	row.node.classList.toggle("remarked", Boolean(line.remarks?.length));
	const hidden = Math.max(0, line.holders.length - holders) + Math.max(0, waitersOf(line) - waiters);
	const wanted = [];
	for (const [entries, holds] of [[line.holders.slice(0, holders), true], [line.waiters.slice(0, waiters), false]]) {
		for (const entry of entries) wanted.push({ id: idOf(entry), entry, holds });
	}
	const keep = new Set(wanted.map((w) => w.id));
	for (const [id, shown] of row.entries) {
		if (keep.has(id)) continue;
		dropEntry(shown);
		row.entries.delete(id);
	}
	let previous = null;
	for (const { id, entry, holds } of wanted) {
		let shown = row.entries.get(id);
		if (!shown) row.entries.set(id, shown = newEntry(id));
		shown.entry = entry;
		shown.holds = holds;
		shown.node.classList.toggle("holder", holds);
		shown.node.classList.toggle("waiter", !holds);
		setText(shown.who, hostOf(entry) + (holds && entry.owner?.command ? ` ${visible(entry.owner.command)}` : ""));
		const after = previous ? previous.nextSibling : row.line.firstChild;
		if (after !== shown.node) row.line.insertBefore(shown.node, after);
		previous = shown.node;
	}
	setText(row.more, hidden ? `+${number(hidden)}` : "");
	if (hidden) row.line.append(row.more);
	else row.more.remove();
	refresh(row, line);
}

function newEntry(id) {
	const shown = { begin: performance.now(), who: el("span", { class: "who" }), age: el("span", { class: "age" }), lease: el("span", { class: "lease" }) };
	shown.node = el("span", { class: "entry", data: { id } }, shown.lease, shown.who, shown.age);
	return shown;
}

// refresh updates what changes by itself: the age of holds, and their leases.
function refresh(row, line) {
	if (!line) return;
	if (!isStale()) for (const { entry, holds, age, lease, ...shown } of row.entries.values()) {
		const since = Date.parse(holds ? heldSince(entry) : entry.owner?.since);
		const seconds = Math.floor((now() - since) / 1000);
		const text = seconds >= 1 ? duration(seconds) : ""; // also if it is not known
		setText(age, holds ? text : "");
		const title = `${ownerOf(entry)}\n${holds ? "holds" : "waits"}${text && ` for ${text}`}, token ${entry.token}`;
		if (shown.node.title !== title) shown.node.title = title;
	}
	for (const shown of row.entries.values()) showLease(shown);
}

// showLease shows how much of the lease is left: a bar that shrinks, and jumps when it is renewed.
function showLease(shown) {
	const { entry, lease, node } = shown;
	const known = shown.holds && entry.deadline !== undefined;
	node.classList.toggle("leased", known);
	if (!known) {
		shown.animation?.cancel();
		shown.animation = shown.deadline = undefined;
		return;
	}
	const left = Math.max(0, entry.deadline - performance.now());
	const part = Math.min(1, left / 1000 / entry.longest);
	if (isStale()) { // it is not known whether it was renewed
		shown.animation?.pause();
		shown.deadline = undefined;
		return;
	}
	if (performance.now() - shown.begin < settled) {
		lease.style.transform = `scaleX(${part})`;
		return;
	}
	if (shown.deadline !== undefined && Math.abs(entry.deadline - shown.deadline) < renewalSlack && !still.matches) return;
	const renewed = shown.deadline !== undefined && entry.deadline > shown.deadline + renewalSlack;
	shown.deadline = entry.deadline;
	shown.animation?.cancel();
	lease.style.transform = `scaleX(${part})`;
	if (renewed) node.dataset.renewals = +(node.dataset.renewals ?? 0) + 1;
	if (still.matches) return;
	shown.animation = lease.animate([{ transform: `scaleX(${part})` }, { transform: "scaleX(0)" }], { duration: left, fill: "forwards" });
	if (renewed) lease.animate([{ filter: "brightness(1.6)" }, { filter: "none" }], { duration: 500 });
}

function positions(row) {
	const all = new Map();
	for (const [id, { node }] of row.entries) all.set(id, node.offsetLeft);
	return all;
}

// move lets entries step to their new places, and new ones appear.
function move({ row, before, after }) {
	for (const [id, { node }] of row.entries) {
		const from = before.get(id);
		if (from === undefined) node.animate([{ opacity: 0, transform: "translateX(1.5rem)" }, { opacity: 1, transform: "none" }], { duration: 300, easing: "ease-out" });
		else if (from !== after.get(id)) node.animate([{ transform: `translateX(${from - after.get(id)}px)` }, { transform: "none" }], { duration: 400, easing: "ease-in-out" });
	}
}
