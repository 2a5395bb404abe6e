package fileguard

import (
	"fmt"
	"os"
	"syscall"
)

// Magic numbers of network file systems, from statfs(2) and linux/magic.h.
var network = map[int64]string{
	0x6969:     "NFS",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB",
	0x517b:     "SMB",
	0x5346414f: "AFS",
	0x73757245: "Coda",
	0x00c36400: "Ceph",
	0x01021997: "9p",
	0x47504653: "GPFS",
	0x0bd00bd0: "LustreFS",
}

// checkLocal returns an error for a file on a network file system. A lock there may be lost when the
// server restarts, while its holder goes on.
func checkLocal(file *os.File) error {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(file.Fd()), &fs); err != nil {
		return fmt.Errorf("determine its file system: %w", err)
	}
	return checkType(int64(fs.Type)) //nolint:unconvert // the type depends on the processor
}

// checkType returns an error for the type of a network file system. Some processors extend its sign.
func checkType(magic int64) error {
	if name := network[magic&0xffffffff]; name != "" {
		return fmt.Errorf("it is on a network file system, %s, whose locks cannot be relied on", name)
	}
	return nil
}
