// Holds a lock of stile serve, or of another etcd, from Node.js 18 or newer. It needs no package.
//
//     STILE_HTTP=http://127.0.0.1:2379 node lock.mjs NAME
//
// It waits in line for the lock, and then does a step of work for each line of its input. README.md
// says what it does not protect from.

import http from "node:http";
import readline from "node:readline";
import { text } from "node:stream/consumers";

const server = process.env.STILE_HTTP ?? "http://127.0.0.1:2379";
const ttl = 60; // seconds: after a crash the lock is free when they have passed

// fetch would give up after five minutes without a reply, and the wait may be longer.
function call(path, body) {
  return new Promise((resolve, reject) => {
    const options = { method: "POST", headers: { "Content-Type": "application/json" } };
    const request = http.request(server + path, options, (reply) => {
      text(reply).then((answer) => {
        if (reply.statusCode !== 200) throw new Error(`${path}: ${reply.statusCode}: ${answer}`);
        resolve(JSON.parse(answer));
      }).catch(reject);
    });
    request.on("error", reject);
    request.end(JSON.stringify(body));
  });
}

const seconds = () => performance.now() / 1000;

class Lock {
  constructor(name) {
    this.name = name;
  }

  async acquire() {
    this.deadline = seconds() + 0.9 * ttl; // counted from before the request
    this.lease = (await call("/v3/lease/grant", { TTL: ttl })).ID;
    this.renewal = setInterval(() => this.renew(), ttl * 200); // in line, too, the lease must live
    const name = Buffer.from(this.name).toString("base64");
    this.key = (await call("/v3/lock/lock", { name, lease: this.lease })).key;
    // Stile shows this lock with the same token. Later holders have larger ones.
    this.token = BigInt((await this.entry()).create_revision) << 11n;
  }

  async release() {
    clearInterval(this.renewal);
    if (this.lease) await call("/v3/lease/revoke", { ID: this.lease }); // removes the entry
  }

  async renew() {
    const sent = seconds();
    try {
      const { result } = await call("/v3/lease/keepalive", { ID: this.lease });
      if (result.TTL) this.deadline = sent + 0.9 * ttl;
    } catch {
      // The next attempt may succeed before the deadline.
    }
  }

  async entry() {
    const { kvs } = await call("/v3/kv/range", { key: this.key });
    if (!kvs) throw new Error(`lost the lock ${this.name}: it was broken, or its lease has expired`);
    return kvs[0];
  }

  // check fails if the lock is lost. It may be lost a moment later.
  async check() {
    await this.entry();
    if (seconds() > this.deadline) throw new Error(`lost the lock ${this.name}: its lease was not renewed in time`);
  }
}

const lock = new Lock(process.argv[2]);
process.once("SIGINT", () => lock.release().finally(() => process.exit(130)));
try {
  await lock.acquire();
  console.log(`holding ${lock.name} with token ${lock.token}`);
  for await (const step of readline.createInterface({ input: process.stdin })) {
    await lock.check();
    console.log(`working on ${step}`);
  }
} finally {
  await lock.release();
}
