// What the user has chosen: the view, a lock, and which locks to show. The view and the lock are in the
// address too.
import { state, searchable, touch } from "./state.js";

export const views = ["lines", "timeline", "waits", "blame"];

export const ui = {
	view: "lines",
	key: "", // of the selected lock
	open: false, // whether its details are shown
	prefix: "", // of the names that are shown
	query: "", // in lower case
	onlyWaited: false,
};

let revision = 0; // of what decides which locks are shown

// choose changes some of these, and shows the change.
export function choose(changes) {
	Object.assign(ui, changes);
	revision++;
	const address = `#${ui.view}${ui.key ? "/" + ui.key : ""}`;
	if (location.hash !== address) history[changes.view ? "pushState" : "replaceState"](null, "", address);
	touch();
}

// readAddress takes the view and the lock from the address.
export function readAddress() {
	const [view, key] = location.hash.slice(1).split("/");
	ui.view = views.includes(view) ? view : "lines";
	ui.key = /^[\w-]*$/.test(key ?? "") ? key ?? "" : "";
	revision++;
	touch();
}

let cached = { of: -1, lines: [] };

// chosenLines returns the lines to show, in order. refresh says that lines have changed since the last call.
export function chosenLines(refresh) {
	if (!refresh && cached.of === revision) return cached.lines;
	cached.of = revision;
	cached.lines = state.sorted;
	if (ui.prefix || ui.query || ui.onlyWaited) {
		cached.lines = state.sorted.filter((line) => line.name.startsWith(ui.prefix) &&
			(!ui.onlyWaited || line.waiters.length > 0) && (!ui.query || searchable(line).includes(ui.query)));
	}
	return cached.lines;
}

// step selects the lock that is some rows further, or the first one.
export function step(by) {
	const lines = chosenLines(false);
	if (!lines.length) return;
	const at = lines.findIndex((line) => line.key === ui.key);
	const next = at < 0 && Number.isFinite(by) ? 0 : Math.max(0, Math.min(lines.length - 1, at + by));
	choose({ key: lines[next].key });
}
