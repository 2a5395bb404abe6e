// Breaking a lock: only where the server allows it, and with a reason.
import { $, el, setText, ownerOf } from "./dom.js";
import { post } from "./api.js";
import { state } from "./state.js";

// mayBreak reports whether the server would accept a break.
export const mayBreak = () => Boolean(state.server?.allow_break) && state.server?.role === "break";

// offerBreak asks for a reason, and removes an entry.
export function offerBreak(key, entry, holds) {
	const dialog = $("break");
	const reason = el("input", { id: "reason", required: true, maxLength: 500, autocomplete: "off", placeholder: "why, for the server's log" });
	const result = el("p", { id: "break-result", role: "status" });
	const submit = el("button", { type: "submit", class: "danger" }, "Break");
	const label = state.lines.get(key)?.label ?? "";
	const form = el("form", {
		onsubmit: async (event) => {
			event.preventDefault();
			submit.disabled = true;
			setText(result, "Breaking…");
			try {
				await post("break", { key, token: entry.token, reason: reason.value });
				setText(result, "The entry was removed.");
				reason.readOnly = true;
				submit.hidden = true;
				$("close-break").focus(); // the keyboard must not be left at an element that is gone
			} catch (err) {
				setText(result, err.message);
				submit.disabled = false;
			}
		},
	},
	el("p", {}, holds ? "This ends the hold of " : "This removes the waiter ", el("b", {}, ownerOf(entry)), " of ", el("b", {}, label), ` (token ${entry.token}). `,
		holds ? "The holder may still be working when the next one is admitted; only guards that check the token protect against that." : "It joins the line again, at the end."),
	el("label", { htmlFor: "reason" }, "Reason"), reason, result,
	el("div", { class: "bar" }, submit, el("button", { type: "button", id: "close-break", onclick: () => dialog.close() }, "Close")));
	dialog.replaceChildren(el("h2", { id: "break-title" }, holds ? "Break this hold?" : "Remove this waiter?"), form);
	dialog.showModal();
	reason.focus();
}
