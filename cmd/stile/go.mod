module github.com/stilelock/stile/cmd/stile

go 1.26.0

require github.com/stilelock/stile v0.0.0

replace github.com/stilelock/stile => ../..
