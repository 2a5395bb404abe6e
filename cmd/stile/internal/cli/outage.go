package cli

// An outage tracks whether the store can be read, so that the user is informed once when that
// changes.
type outage struct {
	err error // of the last reading; nil if it succeeded
}

// update records the outcome of a reading and returns the text to print, usually "".
func (o *outage) update(err error) string {
	before := o.err
	o.err = err
	switch {
	case err != nil && before == nil:
		return textOf(err) + "; trying again"
	case err == nil && before != nil:
		return "the store can be read again"
	default:
		return ""
	}
}
