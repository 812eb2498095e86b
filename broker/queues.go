package broker

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// QueueStatus is how one lane of an agent's queue stands.
type QueueStatus struct {
	Agent string            `json:"agent"`
	Lane  protocol.Priority `json:"lane"`
	// Depth counts the offers that stand in it, delivered or not.
	Depth int `json:"depth"`
	// Delivered counts those of them that were given to a worker and neither
	// removed nor delivered again since: one whose worker died is among them until
	// a worker takes it.
	Delivered int `json:"delivered"`
	// Oldest is when the oldest offer was put that stands in it, delivered or
	// not, by the engine's clock.
	Oldest time.Time `json:"oldest"`
	// Waiting is when the oldest of those was put that no worker was given yet; zero
	// where all are delivered. An offer stands as long as a worker works on it, so
	// this is what tells of a queue that is too long.
	Waiting time.Time `json:"waiting,omitzero"`
}
