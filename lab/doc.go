// Package lab is where Stile is held against others. Its module has what the library must not depend on: peers to measure
// and to try interoperation with.
package lab
