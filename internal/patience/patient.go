//go:build patient

package patience

// Factor allows for a machine on which everything takes several times as long.
const Factor = 8
