// The details of the selected lock: all that is known of its holders and waiters, and what has happened to
// it.
import { $, el, setText, keyed, fields, ownerOf, duration, dateAndTime, timeOfDay, visible, shortened, number } from "./dom.js";
import { state, idOf, waitersOf, now, heldSince, isStale } from "./state.js";
import { ui, choose } from "./ui.js";
import { useOf } from "./lines.js";
import { History, sentenceOf, isBad } from "./history.js";
import { offerBreak, mayBreak } from "./break.js";

const maxEntries = 50; // shown of the waiters, and of the holders
const maxEvents = 40;

let key = "", history, parts;

// updateDetail shows the details of the selected lock, if they are open.
export function updateDetail() {
	const pane = $("detail");
	const wanted = ui.open && ui.key ? ui.key : "";
	if (wanted !== key) {
		history?.close();
		key = wanted;
		history = key ? new History(key, () => { if (key) render(); }) : undefined;
		pane.hidden = !key;
		parts = undefined;
		pane.replaceChildren();
	}
	if (!key) return;
	history.update();
	render();
}

function build() {
	parts = {
		name: el("h2", { class: "full" }), use: el("p", { class: "use" }), remarks: el("div", { class: "remarks" }),
		holders: el("div", { class: "entries", id: "holders" }), waiters: el("div", { class: "entries", id: "waiters" }),
		moreHolders: el("p", { class: "dim" }), moreWaiters: el("p", { class: "dim" }),
		holdersTitle: el("h3"), waitersTitle: el("h3"), events: el("ol", { class: "events", id: "history" }),
	};
	$("detail").replaceChildren(
		el("div", { class: "bar" },
			el("button", { type: "button", id: "to-its-timeline", onclick: () => choose({ view: "timeline", open: false }) }, "Timeline"),
			el("button", { type: "button", id: "close-detail", onclick: () => choose({ open: false }) }, "Close")),
		parts.name, parts.use, parts.remarks, parts.holdersTitle, parts.holders, parts.moreHolders,
		parts.waitersTitle, parts.waiters, parts.moreWaiters, el("h3", {}, "The last hour"), parts.events);
}

function render() {
	if (!parts) build();
	const line = state.lines.get(key) ?? { label: nameOfKey(key), holders: [], waiters: [] };
	setText(parts.name, line.label);
	setText(parts.use, useOf(line) + (line.limit ? `; the operator's limit is ${number(line.limit)}` : ""));
	keyed(parts.remarks, line.remarks ?? [], (text) => text, (text) => el("p", {}, visible(text)));
	setText(parts.holdersTitle, line.holders.length > 1 ? `Holders (${number(line.holders.length)})` : "Holder");
	setText(parts.waitersTitle, `Waiters (${number(waitersOf(line))})`);
	parts.holdersTitle.hidden = line.holders.length === 0;
	parts.waitersTitle.hidden = line.waiters.length === 0;
	for (const [entries, at, more, holds, all] of [[line.holders, parts.holders, parts.moreHolders, true, line.holders.length], [line.waiters, parts.waiters, parts.moreWaiters, false, waitersOf(line)]]) {
		keyed(at, entries.slice(0, maxEntries), idOf, () => newEntry(), (section, entry) => fillEntry(section, entry, holds));
		const hidden = all - Math.min(entries.length, maxEntries);
		setText(more, hidden > 0 ? `and ${number(hidden)} more` : "");
	}
	renderEvents();
}

// nameOfKey returns the name of a lock that has no line, as text.
function nameOfKey(key) {
	try {
		const bytes = Uint8Array.from(atob(key.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
		return visible(new TextDecoder().decode(bytes));
	} catch {
		return "?";
	}
}

export { nameOfKey };

function newEntry() {
	const button = el("button", { type: "button", class: "danger" }, "Break…");
	const section = el("section", { class: "entry-detail" }, el("div", { class: "bar" }, el("strong"), button), el("dl"));
	button.onclick = () => offerBreak(key, section.entry, section.holds);
	return section;
}

const time = (t) => (t ? `${dateAndTime(t)} (${duration(Math.max(0, now() - Date.parse(t)) / 1000)} ago)` : "");

function fillEntry(section, entry, holds) {
	section.entry = entry;
	section.holds = holds;
	const o = entry.owner ?? {};
	setText(section.querySelector("strong"), ownerOf(entry));
	section.querySelector("button").hidden = !mayBreak() || entry.token === "0";
	const left = entry.deadline === undefined ? "" : isStale() ? "not known" : `${Math.ceil(Math.max(0, entry.deadline - performance.now()) / 1000)} s left`;
	fields(section.lastChild, [
		["reason", visible(o.reason)], ["host", visible(o.host)], ["process", o.pid ? String(o.pid) : ""], ["user", visible(o.user)],
		["command", visible(o.command)], ["value", visible(o.value)],
		...Object.entries(o.labels ?? {}).map(([name, value]) => [`label ${visible(name)}`, visible(value)]),
		["token", entry.token === "0" ? "not known" : entry.token], ["mode", entry.mode],
		["in line since", time(o.since)], ["held since", holds ? time(heldSince(entry)) : ""], ["lease", left],
		["waits for", (o.waits ?? []).map((w) => visible(w.name)).join(", ")],
		["runs under", (o.under ?? []).map((h) => visible(h.name)).join(", ")],
		["session", shortened(visible(entry.session), 60)],
	]);
}

let eventsShown;

function renderEvents() {
	if (history.error && !history.events) setText(parts.events, history.error);
	if (!history.events || eventsShown === history.events && parts.events.children.length) return;
	eventsShown = history.events;
	parts.events.replaceChildren(...history.events.slice(-maxEvents).reverse().map((e) => el("li", { class: isBad(e) ? "bad" : "" },
		el("time", { title: dateAndTime(e.time) }, timeOfDay(e.time)), " ", el("span", {}, ownerOf(e.entry)), ` ${sentenceOf(e)}`,
		e.held_seconds ? ` after ${duration(e.held_seconds)}` : e.waited_seconds ? ` after waiting for ${duration(e.waited_seconds)}` : "")));
	if (!history.events.length) parts.events.replaceChildren(el("li", { class: "dim" }, "nothing has changed"));
}

