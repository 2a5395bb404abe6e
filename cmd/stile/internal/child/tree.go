package child

// Tree identifies a command and every process that it has started. It is valid in all processes of
// this machine.
type Tree struct {
	// Group is the command's process group, which is also its process id.
	Group int
	// Started is the command's start time in the system's units; zero if the system does not report
	// it.
	Started uint64
	// Mark is a prefix of an entry of the environment, NAME=text, that is unique to the command. On
	// Linux it identifies processes that have left the group. Empty means that there is no mark.
	Mark string
}
