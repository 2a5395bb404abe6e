// What the page knows about the store: all lines, in the order of their names, and how recent they are. It
// follows the server's events, and calls its listeners at most once in a frame.
import { get, stream, Failure, setToken } from "./api.js";
import { nameOf, visible } from "./dom.js";

const pageSize = 1000;
const silenceLimit = 40e3; // the server sends something every 15 seconds
const wakeLimit = 20e3; // the same, when the tab is looked at again
const hiddenLimit = 60e3; // after that a tab in the background disconnects: browsers have six connections for all tabs
const minBackoff = 300, maxBackoff = 10e3;
const freeShown = 3e3; // how long a line without entries is still shown

export const state = {
	lines: new Map(), // by key
	sorted: [], // the same, by name
	server: null, // the last answer of /api/v1/server
	read: false, // whether all lines have been read at least once, by the server and by this page
	storeError: "", storeSince: "", // from the server
	serverError: "", serverSince: 0, // of the connection to the server
	needsToken: false, tokenRefused: "",
	skew: 0, // of the server's clock against the browser's, in milliseconds
};

const listeners = new Set(); // called with the keys of changed lines, and whether lines came or went
let changed = new Set(), membership = false, scheduled = false;

// onChange calls f in the next frame after a change.
export function onChange(f) { listeners.add(f); }

// touch has the listeners called.
export function touch(key) {
	if (key !== undefined) changed.add(key);
	if (scheduled) return;
	scheduled = true;
	requestAnimationFrame(() => {
		scheduled = false;
		const keys = changed, came = membership;
		changed = new Set(); membership = false;
		for (const f of listeners) f(keys, came);
	});
}

// isStale reports whether the lines may be out of date.
export const isStale = () => Boolean(state.serverError || state.storeError);

// now returns the present time of the server's clock, in milliseconds.
export const now = () => Date.now() + state.skew;

// idOf identifies an entry within its line.
export const idOf = (entry) => (entry.token !== "0" ? entry.token : `${entry.session} ${entry.owner?.since ?? ""}`);

// heldSince returns since when an entry holds the lock, as text: what its owner has published, or what the
// server saw.
export const heldSince = (entry) => entry.owner?.obtained ?? entry.admitted;

export const entriesOf = (line) => line.holders.concat(line.waiters);

// waitersOf returns how many wait: an answer leaves out the last ones if there are thousands.
export const waitersOf = (line) => line.waiters.length + (line.omitted ?? 0);

// confirm records that an entry's session had some seconds left at this moment. The longest time that was
// ever left is about its TTL.
function confirm(entry, seconds, known) {
	entry.longest = known?.longest ?? 0;
	if (!(seconds > 0)) return;
	entry.deadline = performance.now() + seconds * 1000;
	entry.confirmed = performance.now();
	entry.longest = Math.max(entry.longest, seconds);
}

const orderOf = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.key < b.key ? -1 : a.key > b.key ? 1 : 0);

function position(line) {
	let low = 0, high = state.sorted.length;
	while (low < high) {
		const middle = (low + high) >> 1;
		if (orderOf(state.sorted[middle], line) < 0) low = middle + 1;
		else high = middle;
	}
	return low;
}

let revisions = 0; // of lines; a renewal is none

// put replaces a line by what the server says about it now. events are what has happened to it.
function put(line, events = []) {
	const old = state.lines.get(line.key);
	const known = new Map(old && entriesOf(old).map((e) => [idOf(e), e]));
	const admitted = new Map(events.filter((e) => e.what === "holds").map((e) => [idOf(e.entry), e.time]));
	for (const e of entriesOf(line)) {
		const id = idOf(e);
		confirm(e, e.remaining_ns / 1e9, known.get(id));
		e.admitted = admitted.get(id) ?? known.get(id)?.admitted;
	}
	line.label = nameOf(line);
	line.revision = ++revisions;
	line.free = entriesOf(line).length === 0 ? performance.now() : 0;
	if (!old && line.free) return;
	state.lines.set(line.key, line);
	const i = old ? state.sorted.indexOf(old, position(old)) : position(line);
	state.sorted.splice(i, old ? 1 : 0, line);
	membership ||= !old;
	touch(line.key);
}

function remove(line) {
	state.lines.delete(line.key);
	state.sorted.splice(state.sorted.indexOf(line, position(line)), 1);
	membership = true;
	touch(line.key);
}

// A line that has become free stays for a moment, so that rows do not jump when a lock is taken again and
// again.
setInterval(() => {
	const before = performance.now() - freeShown;
	for (const line of state.sorted.filter((l) => l.free && l.free < before)) remove(line);
}, 1000);

// searchable returns the text in which a search looks.
export function searchable(line) {
	return (line.text ??= [line.label, line.name, ...entriesOf(line).map((e) => {
		const o = e.owner ?? {};
		return visible([o.host, o.user, o.pid, o.command, o.reason].join(" "));
	})].join("\n").toLowerCase());
}

// readAll reads all lines, and returns the ID of the update to follow them from.
async function readAll() {
	let first, after = "";
	const there = new Set();
	do {
		const page = await get("lines", after ? { limit: pageSize, after } : { limit: pageSize });
		first ??= page;
		for (const line of page.lines) {
			there.add(line.key);
			put(line);
		}
		after = page.next;
	} while (after);
	for (const line of [...state.sorted]) if (!there.has(line.key)) remove(line);
	setStatus(first);
	return first.update;
}

function setStatus(status) {
	state.read = status.read;
	state.storeError = status.error;
	state.storeSince = status.since;
	touch();
}

// Following the server: read all lines, then the events. One loop, until the tab is closed.

let connection = null; // an AbortController of the present stream
let lastArrival = 0; // of anything from the server
let wake = () => {}; // ends the pause before the next attempt
let retry; // the time of the next attempt
let hiding; // the time when the tab disconnects

let asleep = false; // in the background for long

const arrived = () => { lastArrival = performance.now(); };

async function follow() {
	let update = "", backoff = minBackoff;
	for (;;) {
		if (asleep) await new Promise((resolve) => { wake = resolve; });
		try {
			const server = await get("server");
			if (state.server && state.server.boot !== server.boot) update = "";
			if (Math.abs(server.date + 500 - Date.now()) > 2000) state.skew = server.date + 500 - Date.now();
			state.server = server;
			state.needsToken = false;
			if (!update) update = await readAll();
			touch();
			arrived();
			connection = new AbortController();
			await stream(update, connection.signal, (name, data, id) => {
				backoff = minBackoff;
				state.serverError = "";
				if (name === "lines") for (const { line, events } of data.lines) put(line, events);
				if (name === "status") setStatus(data);
				if (name === "reset") {
					update = "";
					connection.abort();
					return;
				}
				update = id || update;
			}, arrived);
			fail("the server has closed the connection");
		} catch (err) {
			if (err instanceof Failure && err.status === 401) {
				state.needsToken = true;
				state.tokenRefused = err.message;
				touch();
				await new Promise((resolve) => { wake = resolve; });
				continue;
			}
			if (connection?.signal.aborted && !(err instanceof Failure)) backoff = minBackoff;
			else fail(err instanceof Failure ? err.message : "the connection to the server was lost");
		}
		connection = null;
		const pause = backoff * (0.75 + Math.random() / 2);
		backoff = Math.min(backoff * 2, maxBackoff);
		await new Promise((resolve) => { wake = resolve; retry = setTimeout(resolve, pause); });
		clearTimeout(retry);
	}
}

function fail(message) {
	if (!state.serverError) state.serverSince = Date.now();
	state.serverError = message;
	touch();
}

// useToken tries again with a token.
export function useToken(text) {
	setToken(text);
	wake();
}

// reconnectIfSilent connects again if nothing has arrived for long: a connection may be dead without
// anybody noticing.
function reconnectIfSilent(limit) {
	if (!connection) wake();
	else if (performance.now() - lastArrival > limit) connection.abort();
}

setInterval(() => { if (connection) reconnectIfSilent(silenceLimit); }, 5000);
for (const event of ["visibilitychange", "resume"]) document.addEventListener(event, () => {
	clearTimeout(hiding);
	if (document.hidden) {
		hiding = setTimeout(() => { asleep = true; connection?.abort(); }, hiddenLimit);
		return;
	}
	asleep = false;
	if (!state.needsToken) reconnectIfSilent(wakeLimit);
});
addEventListener("online", () => { if (!state.needsToken) reconnectIfSilent(0); });

// start begins to follow the server.
export function start() { follow(); }

// Leases: what a renewal changes is not an event. They are asked for while somebody looks.

const maxKeys = 100;
let shown = () => []; // returns the keys of the lines that are shown
let asking = false, askAgain = false;

// showLeasesOf has the leases of some lines read each second. keys returns theirs.
export function showLeasesOf(keys) { shown = keys; }

// askForLeases reads them now.
export async function askForLeases() {
	if (asking) { askAgain = true; return; }
	const keys = [...new Set(shown())].filter((key) => state.lines.get(key)?.holders.length).slice(0, maxKeys);
	if (document.hidden || isStale() || state.needsToken || !keys.length) return;
	asking = true;
	try {
		const { leases } = await get("leases", { key: keys });
		for (const { key, entries } of leases) {
			const line = state.lines.get(key);
			if (!line) continue;
			const byID = new Map(entriesOf(line).map((e) => [idOf(e), e]));
			for (const lease of entries) {
				const entry = byID.get(lease.token !== "0" ? lease.token : "") ?? entriesOf(line).find((e) => e.session === lease.session);
				if (entry) confirm(entry, lease.remaining_seconds, entry);
			}
			touch(key);
		}
	} catch { /* the stream reports what is wrong */ }
	asking = false;
	if (askAgain) { askAgain = false; askForLeases(); }
}

setInterval(askForLeases, 1000);
