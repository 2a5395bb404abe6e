module github.com/stilelock/stile/tools

go 1.26.0
