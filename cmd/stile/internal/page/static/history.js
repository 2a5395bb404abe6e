// What has happened to one lock in the last hour.
import { get } from "./api.js";
import { state, isStale } from "./state.js";

const interval = 1000; // between two requests
const retryInterval = 5000;

export class History {
	// A History reads the events of one lock again when the lock has changed, and calls done after that.
	constructor(key, done) {
		this.key = key;
		this.done = done;
		this.events = null; // null until they are read
		this.error = "";
		this.revision = -1; // of the line when they were read
		this.next = 0; // when they may be read again
		this.busy = false;
	}

	// update reads the events if the lock has changed since.
	async update() {
		const revision = state.lines.get(this.key)?.revision ?? 0;
		if (this.busy || revision === this.revision || isStale() && this.events) return;
		const pause = this.next - performance.now();
		if (pause > 0) {
			this.timer ??= setTimeout(() => { this.timer = undefined; this.update(); }, pause);
			return;
		}
		this.busy = true;
		this.next = performance.now() + interval;
		try {
			this.events = (await get("history", { key: this.key })).events;
			this.revision = revision;
			this.error = "";
		} catch (err) {
			this.error = err.message;
			this.next = performance.now() + retryInterval;
		}
		this.busy = false;
		if (!this.closed) {
			this.done();
			this.update();
		}
	}

	close() {
		this.closed = true;
		clearTimeout(this.timer);
	}
}

// sentenceOf says what an event was.
export const sentenceOf = (e) => ({ waits: "joined the line", holds: "got the lock", left: "left the line" }[e.what] ??
	{ released: "released it", lost: "lost it", broken: "was broken" }[e.cause] ?? "held it no more");

// isBad reports whether an event is a loss or a break.
export const isBad = (e) => e.cause === "lost" || e.cause === "broken";
