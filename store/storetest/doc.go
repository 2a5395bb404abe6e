// Package storetest is the conformance suite for stores. It tests what package store promises, and
// it uses only that contract, so the authors of third-party stores can run it on theirs.
//
// # Running it on your own store
//
// Give the suite a function that opens your store, and the TTLs its sessions use:
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
// This runs on the real clock and takes about half a minute, mostly spent waiting for sessions to
// expire. The tests run in parallel. A store that lives in the test's process, and measures time
// with package time, can run on a fake clock instead, so that no time is spent waiting:
//
//	storetest.Run(t, storetest.Harness{
//		Open:  func(*testing.T) store.Store { return mystore.New() },
//		Run:   synctest.Test,
//		TTL:   time.Hour,
//		Grace: time.Minute,
//	})
//
// If the store talks to a server, set Peer too: each test then has two clients, like two processes,
// and checks that the actions of one reach the other. If a client's connection can be cut, set Cut:
// some promises can only be tested during an outage.
//
// # Abilities
//
// Not every store has every ability. A test that needs an ability that the store lacks is left out:
// it does not run and is not reported as skipped, so every skipped test is one that should have
// run. Harness.Without must list the missing abilities, and the suite fails if the list differs
// from what the store's Capabilities and the harness provide. It cannot notice that WaitersOrders,
// ExactAhead or OwnerEvents is listed needlessly. Each ability and the tests that need it:
//
//   - [Fair]: the topics contended, requeue and enqueueall, and the tests of the order of waiters;
//   - [SharedModes]: tests of shared entries and slots;
//   - [Fencing]: the topics order, break and numbers, and the tests in other topics that break an
//     entry or compare orders;
//   - [ReleaseAfter], [Markers], [OwnerUpdates], [Downgrades] and [Contention]: the topics outlast,
//     marker, owner, downgrade and contended;
//   - [Requeue], [SlotNumbers], [Limits], [EnqueueAll] and [Records]: the topics requeue, numbers,
//     limit, enqueueall and record;
//   - [ExactAhead]: the test that counts each change of [store.Standing.Ahead];
//   - [OwnerEvents]: the test of a watch that reports a changed owner;
//   - [WaitersOrders]: the test that breaks a waiter;
//   - [Cut]: the topic outage, and the tests in other topics that need an outage.
//
// Run the suite with -race, and more than once.
//
// # What the suite proves
//
// Each topic (admission, life, notify and so on) is one file. Each test checks one promise and is
// named after it. Package internal/broken has stores with one bug each. The tests of this
// package check that the suite rejects every broken store with the intended test, and that every
// test rejects at least one broken store.
//
// The suite checks the contract literally. Some details are easily overlooked: the error of
// [store.Ticket.Withdraw] matches ErrGone whenever the entry had gone before, also when its session
// has ended or was closed; Notify is called for each change of Ahead, not only at admission; an
// owner is returned exactly as it was given, to the nanosecond.
//
// The suite uses the store through healthy servers. It does not restart servers, change leaders,
// drop single messages or pause processes. The store's own tests must show that the promises hold
// then.
package storetest
