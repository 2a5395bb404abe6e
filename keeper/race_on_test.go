//go:build race

package keeper

// raceEnabled says that the race detector makes everything several times slower.
const raceEnabled = true
