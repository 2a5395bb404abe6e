package cli

// outage keeps track of whether the store can be read, so that the user is told when that changes, and only then.
type outage struct {
	err error // of the last reading; nil if it went well
}

// news takes in how a reading went, and returns what there is to say about that; mostly nothing.
func (o *outage) news(err error) string {
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
