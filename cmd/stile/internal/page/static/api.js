// Requests to the server that serves this page.

// The token is kept in this variable only: it is gone when the tab is closed or loaded again.
let token = "";

export function setToken(text) { token = text; }

// Failure is an answer other than 200, or none. Its status is 0 if the server did not answer.
export class Failure extends Error {
	constructor(status, message) { super(message); this.status = status; }
}

async function request(path, options = {}) {
	const headers = { ...options.headers };
	if (token) headers.Authorization = "Bearer " + token;
	let answer;
	try {
		answer = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers });
	} catch (err) {
		throw new Failure(0, "the server does not answer");
	}
	if (answer.ok) return answer;
	let text = `the server answered with status ${answer.status}`;
	try {
		const problem = await answer.json();
		text = problem.detail || problem.title || text;
		for (const error of problem.errors ?? []) text += `; ${error.message}`;
	} catch { /* not a problem document */ }
	throw new Failure(answer.status, text);
}

const answerTimeout = 35e3; // longer than the server's

// get gets an answer as JSON. Parameters with several values are arrays.
export async function get(path, parameters = {}) {
	const query = new URLSearchParams();
	for (const [name, value] of Object.entries(parameters)) for (const one of [value].flat()) query.append(name, one);
	const answer = await request(`/api/v1/${path}?${query}`, { signal: AbortSignal.timeout(answerTimeout) });
	try {
		return { ...await answer.json(), date: Date.parse(answer.headers.get("Date")) };
	} catch { // cut off
		throw new Failure(0, "the server does not answer");
	}
}

export async function post(path, body) {
	const answer = await request(`/api/v1/${path}`, {
		method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(answerTimeout),
	});
	return answer.json();
}

// stream reads events until the connection ends, and calls receive with the name, data and ID of each.
// alive is called whenever something arrives. EventSource would do the same, but cannot send the token.
export async function stream(after, signal, receive, alive) {
	const answer = await request(`/api/v1/events?${new URLSearchParams({ after })}`, { signal });
	const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
	let text = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		alive();
		text += value;
		for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
			const event = { name: "message", data: "", id: "" };
			for (const field of text.slice(0, end).split("\n")) {
				if (field.startsWith("event: ")) event.name = field.slice(7);
				else if (field.startsWith("data: ")) event.data += field.slice(6);
				else if (field.startsWith("id: ")) event.id = field.slice(4);
			}
			receive(event.name, event.data ? JSON.parse(event.data) : null, event.id);
		}
	}
}
