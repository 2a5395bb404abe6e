#!/usr/bin/env python3
"""Holds a lock of stile serve, or of another etcd, from Python. It needs no package.

    STILE_HTTP=http://127.0.0.1:2379 python3 lock.py NAME

It waits in line for the lock, and then does a step of work for each line of its input. README.md
says what it does not protect from.
"""

import base64
import json
import os
import sys
import threading
import time
import urllib.request

SERVER = os.environ.get("STILE_HTTP", "http://127.0.0.1:2379")
TTL = 60  # seconds: after a crash the lock is free when they have passed


def call(path, body):
    request = urllib.request.Request(
        SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:  # without a timeout: the wait may be long
        return json.load(reply)


class Lock:
    def __init__(self, name):
        self.name, self.released = name, threading.Event()
        self.deadline = time.monotonic() + 0.9 * TTL  # counted from before the request
        self.lease = call("/v3/lease/grant", {"TTL": TTL})["ID"]

    def __enter__(self):
        threading.Thread(target=self.renew, daemon=True).start()  # in line, too, the lease must live
        try:
            name = base64.b64encode(self.name.encode()).decode()
            self.key = call("/v3/lock/lock", {"name": name, "lease": self.lease})["key"]
            # Stile shows this lock with the same token. Later holders have larger ones.
            self.token = int(self.entry()["create_revision"]) << 11
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.released.set()
        call("/v3/lease/revoke", {"ID": self.lease})  # removes the entry

    def renew(self):
        while not self.released.wait(TTL / 5):
            sent = time.monotonic()
            try:
                if "TTL" in call("/v3/lease/keepalive", {"ID": self.lease})["result"]:
                    self.deadline = sent + 0.9 * TTL
            except OSError:
                pass  # the next attempt may succeed before the deadline

    def entry(self):
        entries = call("/v3/kv/range", {"key": self.key}).get("kvs")
        if not entries:
            sys.exit(f"lost the lock {self.name}: it was broken, or its lease has expired")
        return entries[0]

    def check(self):
        """Ends the program if the lock is lost. It may be lost a moment later."""
        self.entry()
        if time.monotonic() > self.deadline:
            sys.exit(f"lost the lock {self.name}: its lease was not renewed in time")


with Lock(sys.argv[1]) as lock:
    print(f"holding {lock.name} with token {lock.token}", flush=True)
    for step in sys.stdin:
        lock.check()
        print(f"working on {step.strip()}", flush=True)
