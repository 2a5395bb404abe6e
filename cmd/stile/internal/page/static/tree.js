// The tree of prefixes: what is before each slash of the names, with the number of locks below it.
import { el, setText, visible, number, plural } from "./dom.js";
import { state } from "./state.js";
import { ui, choose } from "./ui.js";

const buildInterval = 1000;
const maxChildren = 100; // shown of one prefix
const maxShown = 500; // in all

let root = { children: new Map(), count: 0, waited: 0 };
let built = -Infinity, pending, container;
const open = new Set([""]);

function build() {
	root = { prefix: "", children: new Map(), count: 0, waited: 0 };
	for (const { name, waiters } of state.sorted) {
		let node = root;
		for (let end = -1; ;) {
			node.count++;
			node.waited += waiters.length > 0;
			const begin = end + 1;
			end = name.indexOf("/", begin);
			if (end < 0) break;
			const part = name.slice(begin, end + 1);
			let child = node.children.get(part);
			if (!child) node.children.set(part, child = { prefix: name.slice(0, end + 1), part, children: new Map(), count: 0, waited: 0 });
			node = child;
		}
	}
	built = performance.now();
}

// showTree shows the tree in an element.
export function showTree(element) {
	container = element;
	container.hidden = true;
	if (matchMedia("(max-width: 640px)").matches) open.delete(""); // there is little room
}

// updateTree has it shown again, at most once a second, because building it takes all lines.
export function updateTree() {
	if (pending || !container) return;
	pending = setTimeout(update, Math.max(0, built + buildInterval - performance.now()));
}

function update() {
	pending = undefined;
	build();
	container.hidden = root.children.size === 0 && !ui.prefix;
	if (container.hidden) return;
	render();
}

let shown;

// render keeps the elements of nodes that are shown already, so that clicks and the focus are not lost.
function render() {
	shown = 0;
	const list = container.querySelector("ul") ?? container.appendChild(el("ul", { role: "tree" }));
	renderNodes(list, [root]);
}

function renderNodes(list, nodes) {
	const items = new Map([...list.children].map((item) => [item.dataset.prefix, item]));
	let at = list.firstChild;
	for (const node of nodes.slice(0, maxChildren)) {
		if (shown++ > maxShown) break;
		let item = items.get(node.prefix);
		items.delete(node.prefix);
		if (!item) {
			item = el("li", { role: "treeitem", data: { prefix: node.prefix } },
				el("button", { type: "button", class: "fold", "aria-label": "fold or unfold", onclick: () => fold(node.prefix) }),
				el("button", { type: "button", class: "prefix", onclick: () => pick(node.prefix) }, el("span", { class: "part" }), el("span", { class: "count" })));
		}
		if (item === at) at = at.nextSibling;
		else list.insertBefore(item, at);
		const [folder, prefix] = item.children;
		const unfolded = open.has(node.prefix);
		folder.hidden = node.children.size === 0;
		setText(folder, unfolded ? "▾" : "▸");
		item.setAttribute("aria-expanded", unfolded && node.children.size > 0);
		prefix.setAttribute("aria-current", node.prefix === ui.prefix);
		setText(prefix.firstChild, node.prefix === "" ? "all locks" : visible(node.part));
		const title = `${visible(node.prefix)}\n${plural(node.count, "lock")}, ${number(node.waited)} waited for`;
		if (prefix.title !== title) prefix.title = title;
		setText(prefix.lastChild, number(node.count));
		prefix.lastChild.classList.toggle("waited", node.waited > 0);
		let below = item.querySelector(":scope > ul");
		if (unfolded && node.children.size) {
			below ??= item.appendChild(el("ul", { role: "group" }));
			renderNodes(below, [...node.children.values()]);
		} else below?.remove();
	}
	for (const item of items.values()) item.remove();
	while (at) { const next = at.nextSibling; at.remove(); at = next; }
	if (nodes.length > maxChildren) list.append(el("li", { class: "more" }, `and ${number(nodes.length - maxChildren)} more: use the search`));
}

function fold(prefix) {
	open.has(prefix) ? open.delete(prefix) : open.add(prefix);
	render();
}

function pick(prefix) {
	open.add(prefix);
	choose({ prefix: prefix === ui.prefix ? "" : prefix });
	render();
}
