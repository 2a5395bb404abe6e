// The blame view: seconds that others waited, charged to the holders that they waited for.
import { el, setText, keyed, visible, duration, number, timeOfDay, plural, ownerOf } from "./dom.js";
import { get } from "./api.js";
import { isStale } from "./state.js";
import { ui, choose } from "./ui.js";

const interval = 3000;

let parts, timer, asking = false, prefix;

export const blameView = {
	show(root) {
		parts = { summary: el("p", { id: "blame-summary", class: "dim" }, "Reading the waits of the last hour…"), list: el("tbody", { id: "blame" }) };
		parts.table = el("table", { class: "blame", hidden: true },
			el("thead", {}, el("tr", {}, el("th", { class: "amount" }, "others waited"), ...["holder", "lock", "waiters", "holds"].map((t) => el("th", {}, t)))), parts.list);
		root.replaceChildren(el("h2", {}, "Holders that others waited for"), parts.summary, el("div", { class: "wide" }, parts.table));
		prefix = ui.prefix;
		ask();
		timer = setInterval(ask, interval);
	},
	hide() { clearInterval(timer); },
	update() {
		if (prefix === ui.prefix) return;
		prefix = ui.prefix;
		ask();
	},
};

async function ask() {
	if (asking || document.hidden || isStale()) return;
	asking = true;
	const of = prefix;
	try {
		const answer = await get("blame", of ? { prefix: of } : {});
		show(answer);
	} catch (err) {
		setText(parts.summary, visible(err.message));
	}
	asking = false;
	if (of !== prefix) ask();
}

function show({ since, blame }) {
	const total = blame.reduce((sum, b) => sum + b.waited_seconds, 0), most = Math.max(...blame.map((b) => b.waited_seconds), 0.001);
	setText(parts.summary, blame.length
		? `Since ${timeOfDay(since)}: ${duration(total)} of waiting, charged to the holders at that time. The waiting of all waiters is added up; several holders of a lock share it.`
		: `Nobody has waited since ${timeOfDay(since)}.`);
	parts.table.hidden = blame.length === 0;
	keyed(parts.list, blame, (b) => `${b.key} ${[b.holder.host, b.holder.user, b.holder.command, b.holder.reason].map((t) => t ?? "").join("\0")}`,
		(b) => el("tr", {}, el("td", { class: "amount" }, el("span"), el("span", { class: "share" })), el("td"),
			el("td", {}, el("button", { type: "button", class: "link", onclick: () => choose({ view: "lines", key: b.key, open: true }) })), el("td"), el("td")),
		(row, b) => {
			const [amount, holder, lock, waiters, holds] = row.children;
			setText(amount.firstChild, duration(b.waited_seconds));
			amount.lastChild.style.transform = `scaleX(${b.waited_seconds / most})`;
			setText(holder, ownerOf({ owner: { ...b.holder, pid: 0 } }) + (b.holder.reason ? `: ${visible(b.holder.reason)}` : ""));
			setText(lock.firstChild, visible(b.name));
			setText(waiters, plural(b.waiters, "waiter"));
			setText(holds, plural(b.holds, "hold"));
		});
}
