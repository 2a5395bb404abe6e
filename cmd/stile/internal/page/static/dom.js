// Elements, and texts that people read. Everything from the store is hostile: it goes into the document
// only as text.

// el returns an element. Its properties are set as properties of the object, except those of `data` and
// attributes with a dash; children are nodes or texts.
export function el(tag, properties, ...children) {
	const node = document.createElement(tag);
	set(node, properties);
	node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
	return node;
}

function set(node, properties) {
	for (const [name, value] of Object.entries(properties ?? {})) {
		if (name === "data") Object.assign(node.dataset, value);
		else if (name === "class") node.className = value;
		else if (name.includes("-") || name === "role") node.setAttribute(name, value);
		else node[name] = value;
	}
}

// svg returns an SVG element with attributes.
export function svg(tag, attributes, ...children) {
	const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
	node.append(...children);
	return node;
}

export const $ = (id) => document.getElementById(id);

// setText changes a text only if it differs, because each change costs a layout.
export function setText(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

// Control characters, marks that change the direction of the text around them, other invisible characters,
// and spaces that look like none.
const invisible = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu;

// visible returns a text with an escape for each character that cannot be seen, or that could disguise the
// others.
export function visible(text) {
	return String(text ?? "").replace(invisible, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
}

// shortened cuts a text to a number of characters, in the middle.
export function shortened(text, max) {
	const all = Array.from(text);
	if (all.length <= max) return text;
	const tail = Math.floor(max / 3);
	return all.slice(0, max - tail - 1).join("") + "…" + all.slice(-tail).join("");
}

// nameOf returns the name of a line as text. What commands need quoted is quoted here too.
export const nameOf = (line) => visible(line.argument ?? line.name);

// ownerOf says in a few words who an entry is of.
export function ownerOf(entry) {
	const o = entry.owner ?? {};
	if (entry.foreign) return "unknown client";
	const who = o.user && o.host ? `${o.user}@${o.host}` : o.host || o.user || "unknown";
	return visible(`${who}${o.pid ? ` ${o.pid}` : ""}${o.command ? ` ${o.command}` : ""}`);
}

// hostOf names the owner in one or two words.
export function hostOf(entry) {
	const o = entry.owner ?? {};
	if (entry.foreign) return "unknown";
	return visible(o.host || o.user || "unknown");
}

// duration returns a number of seconds as text.
export function duration(seconds) {
	if (!Number.isFinite(seconds)) return "";
	const s = Math.max(0, seconds);
	if (s < 0.9995) return `${+(s * 1000).toPrecision(s < 0.01 ? 2 : 3)} ms`;
	if (s < 10) return `${+s.toFixed(1)} s`;
	const all = Math.round(s);
	if (all < 60) return `${all} s`;
	if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
	if (all < 86400) return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
	return `${Math.floor(all / 86400)} d ${Math.floor((all % 86400) / 3600)} h`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

// timeOfDay returns a time (in milliseconds, or as text) as hours, minutes and seconds.
export const timeOfDay = (t) => (Number.isNaN(+new Date(t)) ? "" : clock.format(new Date(t)));

// dateAndTime returns a time with its date.
export const dateAndTime = (t) => (Number.isNaN(+new Date(t)) ? "" : day.format(new Date(t)));

// number returns a number with separators, and plural the right form of a word after it.
export const number = (n) => n.toLocaleString("en").replaceAll(",", " ");
export const plural = (n, one, many = one + "s") => `${number(n)} ${n === 1 ? one : many}`;

// keyed makes the children of a container those of some items, in order. It keeps the elements of items
// that are there already, so that clicks, the focus and the selection are not lost.
export function keyed(container, items, keyOf, create, update) {
	const there = new Map();
	for (const child of [...container.children]) {
		if (there.has(child.dataset.of)) child.remove(); // items had the same key
		else there.set(child.dataset.of, child);
	}
	let at = container.firstChild;
	for (const item of items) {
		const key = String(keyOf(item));
		let child = there.get(key);
		there.delete(key);
		if (!child) {
			child = create(item);
			child.dataset.of = key;
		}
		if (child === at) at = at.nextSibling;
		else container.insertBefore(child, at);
		update?.(child, item);
	}
	for (const child of there.values()) child.remove();
}

// fields shows pairs of a word and a text in a dl, without the pairs that have no text.
export function fields(list, pairs) {
	keyed(list, pairs.filter(([, text]) => text !== "" && text !== undefined), ([word]) => word,
		([word]) => el("div", {}, el("dt", {}, word), el("dd")), (row, [, text]) => setText(row.lastChild, text));
}
