package testservers

import "time"

// retryTimeout limits [Retry]. Only a failure takes that long.
const retryTimeout = 3 * time.Minute

// Retry returns what open returns, and calls it again for three minutes as long as it fails. It is for
// clients that give up after a time of their own: on a busy machine a working server may answer later.
func Retry[Client any](open func() (Client, error)) (Client, error) {
	for deadline := time.Now().Add(retryTimeout); ; time.Sleep(10 * time.Millisecond) {
		client, err := open()
		if err == nil || time.Now().After(deadline) {
			return client, err
		}
	}
}
