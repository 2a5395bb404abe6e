package stileotel_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stileotel"
	"github.com/stilelock/stile/store/memstore"
)

func Example() {
	// Usually the program has set its providers already.
	exporter := tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))

	hooks, err := stileotel.Hooks(stileotel.Options{})
	if err != nil {
		log.Fatal(err)
	}
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: hooks})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	err = client.Mutex("orders/42").Do(ctx, func(ctx context.Context, _ *stile.Hold) error {
		_, span := otel.Tracer("shop").Start(ctx, "ship") // is below the hold's span
		defer span.End()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// lock wait orders
	// ship
	// lock hold orders
}

// The locks of customers have names with two parts before the ID.
func ExampleOptions_class() {
	hooks, err := stileotel.Hooks(stileotel.Options{
		Class: func(name string) string {
			parts := strings.Split(name, "/") // as in tenant/7/orders/42
			if len(parts) == 4 && parts[0] == "tenant" {
				return parts[2]
			}
			return parts[0]
		},
	})
	fmt.Println(hooks.AttemptStart != nil, err)
	// Output: true <nil>
}
