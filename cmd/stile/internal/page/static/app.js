"use strict";

async function show() {
  const answer = await fetch("/api/v1/lines?limit=1000");
  const body = await answer.json();
  document.getElementById("status").textContent = answer.ok ? body.error || "" : body.detail;
  const rows = (body.lines || []).map((line) => {
    const row = document.createElement("tr");
    for (const text of [line.argument || line.name, line.holders.length, line.waiters.length]) {
      row.appendChild(document.createElement("td")).textContent = text;
    }
    return row;
  });
  document.getElementById("lines").replaceChildren(...rows);
}

show();
setInterval(show, 2000);
