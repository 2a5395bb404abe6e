package child

// Tree is a command with everything that it has started, as others can know it. It says the same to another process of this
// machine.
type Tree struct {
	// Group is the number of the command's process group, and the process id of the command.
	Group int
	// Started is when the command was started, as the system counts; zero if it does not tell.
	Started uint64
	// Mark is how an entry of the environment begins, NAME=text, that nobody else has: what has left the group is known by it,
	// on Linux. Empty means that nothing is.
	Mark string
}
