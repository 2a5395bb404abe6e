// Package lab is where Stile is held against others, and hurt. Its module has what the library must not depend on: peers to
// measure (bench) and to try interoperation with, clusters that are tortured (torture), and a crowd for a server (soak).
package lab
