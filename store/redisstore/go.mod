module github.com/stilelock/stile/store/redisstore

go 1.26.0

require (
	github.com/redis/rueidis v1.0.79
	github.com/stilelock/stile v0.0.0-00010101000000-000000000000
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/stilelock/stile => ../../
