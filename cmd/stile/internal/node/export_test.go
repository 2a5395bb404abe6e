package node

// WithCheapPasswords returns the configuration with passwords that are checked fast: under the race detector that takes
// more than a second of computing otherwise, for each.
func (c Config) WithCheapPasswords() Config {
	c.bcryptCost = 4 // the least there is
	return c
}
