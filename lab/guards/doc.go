// Package guards tests Stile's guards with real servers and real processes, and measures what they cost.
//
// For each guard there is a [Journal]: data that a server keeps, and that several processes change under
// a lock, through the guard. A journal is the list of the tokens of the holders that have changed it, in
// the order of the changes. As long as no stale holder was let in, the tokens never decrease. Command
// writer is such a process, which the tests stop and continue.
package guards
