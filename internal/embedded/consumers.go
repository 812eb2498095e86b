package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// removeLostConsumers removes the files of consumers that the server could not read at its start.
// The server refuses to create a consumer while they exist; afterwards the followers recreate it.
func (n *Node) removeLostConsumers(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	dirs, err := filepath.Glob(filepath.Join(streamDir(n.cfg.Dir, "*"), "obs", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		consumer, stream := filepath.Base(dir), filepath.Base(filepath.Dir(filepath.Dir(dir)))
		_, err := js.Consumer(ctx, stream, consumer)
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			n.cfg.Log.Warn("the state of a consumer cannot be read; the consumer is recreated", "stream", stream, "consumer", consumer)
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("remove the consumer %s of %s: %w", consumer, stream, err)
			}
		case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("read the consumer %s of %s: %w", consumer, stream, err)
		}
	}
	return nil
}
