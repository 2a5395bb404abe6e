// The page: which view is shown, what is wrong, the keyboard, and the token.
import { $, el, setText, timeOfDay, visible, duration } from "./dom.js";
import { state, start, onChange, touch, now, isStale, useToken, showLeasesOf } from "./state.js";
import { ui, views, choose, readAddress, step } from "./ui.js";
import { linesView } from "./lines.js";
import { timelineView } from "./timeline.js";
import { waitsView } from "./waits.js";
import { blameView } from "./blame.js";
import { showTree, updateTree } from "./tree.js";
import { updateDetail } from "./detail.js";

const modules = { lines: linesView, timeline: timelineView, waits: waitsView, blame: blameView };
let current = null;

function update(changed, came) {
	showBanner();
	const form = $("token-form");
	if (state.needsToken !== Boolean(form)) {
		if (form) form.remove();
		else askForToken();
	}
	document.body.classList.toggle("locked", state.needsToken);
	document.body.classList.toggle("stale", isStale());
	const wanted = state.needsToken ? null : ui.view;
	if (wanted !== current) {
		modules[current]?.hide();
		current = wanted;
		document.body.dataset.view = wanted ?? "";
		$("view").replaceChildren();
		modules[current]?.show($("view"));
		for (const view of views) $(`to-${view}`).setAttribute("aria-current", view === current ? "page" : "false");
	} else modules[current]?.update(changed, came);
	for (const view of ["lines", "timeline"]) $(`to-${view}`).hash = `${view}${ui.key ? "/" + ui.key : ""}`;
	if (came || changed.size) updateTree();
	updateDetail();
	setText($("store"), state.server ? `stile ${visible(state.server.stile)} · ${visible(state.server.store)}` : "");
	setText($("connection"), state.needsToken ? "no token" : state.serverError ? "not connected" : state.server ? "live" : "connecting");
}

// showBanner says what is wrong, and since when.
function showBanner() {
	let text = "";
	if (state.needsToken) text = "";
	else if (state.serverError) text = `Not connected since ${timeOfDay(state.serverSince)}: ${visible(state.serverError)}. What is shown was so then.`;
	else if (state.storeError) {
		const age = Math.floor((now() - Date.parse(state.storeSince)) / 1000);
		text = `The store has not answered since ${timeOfDay(state.storeSince)}${age >= 1 ? ` (${duration(age)})` : ""}: ${visible(state.storeError)}. What is shown was so then.`;
	}
	$("banner").hidden = !text;
	setText($("banner"), text);
}

// askForToken shows a form. What is entered is kept in memory only.
function askForToken() {
	const input = el("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: false });
	const refused = el("p", { id: "token-refused", role: "alert" });
	let tried = false;
	$("view").before(el("form", {
		id: "token-form",
		onsubmit: (event) => {
			event.preventDefault();
			tried = true;
			setText(refused, "");
			state.tokenRefused = "";
			useToken(input.value.trim());
			onRefusal(() => { if (tried) setText(refused, state.tokenRefused); });
		},
	},
	el("h2", {}, "A token is needed"),
	el("p", {}, "Enter one of the tokens in the file that ", el("code", {}, "stile serve"), " got with ", el("code", {}, "--page-tokens"), ". The page forgets it when it is closed or loaded again."),
	el("label", { htmlFor: "token" }, "Token"), input, el("button", { type: "submit" }, "Show the locks"), refused));
	input.focus();
}

let refusal = () => {};
function onRefusal(f) { refusal = f; }

onChange(update);
onChange(() => { if (state.needsToken && state.tokenRefused) refusal(); });
showLeasesOf(() => [...(ui.open && ui.key ? [ui.key] : []), ...(current === "lines" ? linesView.keys() : [])]);

// The ages that are shown grow.
setInterval(() => { if (!document.hidden) touch(); }, 1000);

$("search").addEventListener("input", (event) => choose({ query: event.target.value.toLowerCase(), ...(ui.view === "lines" ? {} : { view: "lines" }) }));
$("open-help").addEventListener("click", () => $("help").showModal());
addEventListener("hashchange", readAddress);
addEventListener("popstate", readAddress);

const keys = {
	"/": () => { $("search").focus(); $("search").select(); },
	"?": () => $("help").showModal(),
	j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
	PageDown: () => step(10), PageUp: () => step(-10), Home: () => step(-Infinity), End: () => step(Infinity),
	Enter: () => { if (ui.key) choose({ open: true }); },
	t: () => choose({ view: "timeline", open: false }),
	w: () => choose({ onlyWaited: !ui.onlyWaited }),
};
for (const [i, view] of views.entries()) keys[i + 1] = () => choose({ view, open: false });

function escape() {
	if (document.activeElement === $("search")) {
		if (ui.query) {
			$("search").value = "";
			choose({ query: "" });
		} else $("search").blur();
	} else if (ui.open) choose({ open: false });
	else if (ui.query || ui.prefix) {
		$("search").value = "";
		choose({ query: "", prefix: "" });
		updateTree();
	}
}

addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || state.needsToken) return;
	const target = event.target;
	if (event.key === "Escape") { escape(); return; }
	const typing = target.closest?.("input, textarea, select");
	if (typing && target.type === "search" && (event.key === "Enter" || event.key === "ArrowDown")) {
		event.preventDefault();
		target.blur();
		step(0);
		return;
	}
	if (typing || event.key === "Enter" && target.closest?.("button, a")) return;
	if (modules[current]?.key?.(event.key)) { event.preventDefault(); return; }
	const arrows = ["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End", "j", "k", "w", "Enter"];
	if (arrows.includes(event.key) && current !== "lines") return;
	if (keys[event.key]) {
		event.preventDefault();
		keys[event.key]();
	}
});

readAddress();
showTree($("tree"));
start();
