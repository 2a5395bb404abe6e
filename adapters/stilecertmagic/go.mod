module github.com/stilelock/stile/adapters/stilecertmagic

go 1.26.0

require (
	github.com/caddyserver/certmagic v0.25.4
	github.com/redis/rueidis v1.0.79
	github.com/stilelock/stile v0.0.0-00010101000000-000000000000
	github.com/stilelock/stile/store/redisstore v0.0.0-00010101000000-000000000000
	go.uber.org/zap v1.27.1
)

require (
	github.com/caddyserver/zerossl v0.1.5 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/libdns/libdns v1.1.1 // indirect
	github.com/mholt/acmez/v3 v3.1.6 // indirect
	github.com/miekg/dns v1.1.72 // indirect
	github.com/zeebo/blake3 v0.2.4 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap/exp v0.3.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
)

replace (
	github.com/stilelock/stile => ../../
	github.com/stilelock/stile/store/redisstore => ../../store/redisstore
)
