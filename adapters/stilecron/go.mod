module github.com/stilelock/stile/adapters/stilecron

go 1.26.0

require (
	github.com/redis/rueidis v1.0.79
	github.com/robfig/cron/v3 v3.0.1
	github.com/stilelock/stile v0.0.0-00010101000000-000000000000
	github.com/stilelock/stile/store/redisstore v0.0.0-00010101000000-000000000000
)

require golang.org/x/sys v0.49.0 // indirect

replace (
	github.com/stilelock/stile => ../../
	github.com/stilelock/stile/store/redisstore => ../../store/redisstore
)
