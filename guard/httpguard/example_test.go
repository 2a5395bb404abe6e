package httpguard_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/httpguard"
)

// A server refuses what a stale holder sends. Its clients learn from the response that they lost the lock.
func ExampleGuard() {
	guarded := &httpguard.Guard{
		Tokens: &guard.Forgetful{}, // a server that restarts needs one that remembers
		Lock: func(r *http.Request) string {
			if r.Method == http.MethodGet {
				return "" // reading needs no lock
			}
			return "config"
		},
	}
	server := httptest.NewServer(guarded.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		fmt.Println("writing the configuration")
	})))
	defer server.Close()

	for _, token := range []uint64{6144, 4096} { // of a holder, and of one before it that comes late
		req, err := http.NewRequest(http.MethodPut, server.URL, nil)
		if err != nil {
			log.Fatal(err)
		}
		httpguard.SetHeaders(req.Header, "config", token) // a client uses hold.Token()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(resp.StatusCode, "stale:", errors.Is(httpguard.CheckResponse(resp), guard.ErrStale))
		resp.Body.Close()
	}
	// Output:
	// writing the configuration
	// 200 stale: false
	// 409 stale: true
}
