//go:build patient

package patience

// Factor is larger than what separates a busy machine from others.
const Factor = 4
