// Package storetest is the conformance suite for stores: what package store promises, as tests that every store
// runs. It uses the contract alone, so a store made by a third party is tested by the same suite.
//
// # Running it on a store of your own
//
// Tell the suite how to reach the store, and for how long its sessions should live:
//
//	func TestStore(t *testing.T) {
//		server := startServer(t)
//		storetest.Run(t, storetest.Harness{
//			Open: func(t *testing.T) store.Store {
//				client := dial(t, server.Addr())
//				t.Cleanup(client.Close)
//				return mystore.New(client)
//			},
//			TTL:   time.Minute,
//			Brief: 2 * time.Second,
//			Grace: 30 * time.Second,
//		})
//	}
//
// That runs in real time and takes half a minute, most of which is waiting for sessions to expire; the tests run
// in parallel. A store that lives in the test's own process, and measures time by package time, runs on a
// fake clock instead, where all waiting is over at once:
//
//	storetest.Run(t, storetest.Harness{
//		Open:  func(*testing.T) store.Store { return mystore.New() },
//		Run:   synctest.Test,
//		TTL:   time.Hour,
//		Grace: time.Minute,
//	})
//
// Give it Peer too if the store talks to a server: then each test has two clients, as two processes would, and what
// one of them does must reach the other. Give it Cut if the connection can be cut: there are promises that only
// show then.
//
// # What is left out
//
// Not every store can do everything. The tests that need what a store lacks are left out: they are not there at all, rather
// than skipped, so that a test that is skipped is always one that should have been run. The harness has to name in Without
// what is lacking, and the suite fails if that differs from what the store and the harness say:
//
//   - [Fair]: what is said of waiters;
//   - [SharedModes]: what is said of shared entries and slots;
//   - [Fencing]: the topics order and break, and what comes of breaking an entry in the others;
//   - [ReleaseAfter], [Markers], [OwnerUpdates] and [Contention]: the topics outlast, marker, owner and
//     contended;
//   - [WaitersOrders]: that a waiter can be broken;
//   - [Cut]: the topic outage, and what comes of an outage in the others.
//
// Run it with -race, and more than once.
//
// # What it proves, and what not
//
// Each topic (admission, life, notify and so on) is one file, and each test is named after the one thing that it
// shows. Package broken, below this one, has stores with one bug each; this package's own tests show that the suite
// rejects every one of them, by the test that is meant to, and that there is no test without such a store.
//
// The contract is taken at its word. A few words that are easily overlooked: the error of [store.Ticket.Withdraw]
// matches ErrGone whenever the entry had gone before, also if its session has ended or was closed; waiters are told
// each change of Ahead, not only that it is their turn; an owner is shown as it was given, to the nanosecond.
//
// The suite sees the store from outside, through healthy servers. It does not restart servers, change leaders,
// lose single messages or pause processes. That a store keeps its promises then is for the store's own tests to show.
package storetest
