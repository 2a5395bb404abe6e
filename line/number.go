package line

import "slices"

// FreeNumber returns the smallest number from 0 to slots − 1 that is not taken. ok is false if there
// is none.
func FreeNumber(taken []int, slots int) (number int, ok bool) {
	isTaken := make([]bool, min(len(taken)+1, slots)) // the smallest free number is at most len(taken)
	for _, n := range taken {
		if n < len(isTaken) {
			isTaken[n] = true
		}
	}
	number = slices.Index(isTaken, false)
	return max(number, 0), number >= 0
}
