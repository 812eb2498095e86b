package embedded

import "github.com/nats-io/nats-server/v2/server"

// Stats are the message counts of a node since its server started.
type Stats struct {
	// InMessages and InBytes came from clients, OutMessages and OutBytes went to them: requests,
	// acknowledgements and deliveries alike.
	InMessages, OutMessages int64
	InBytes, OutBytes       int64
}

// Stats returns the counts. It is cheap enough for a call a second.
func (n *Node) Stats() (Stats, error) {
	v, err := n.server().Varz(&server.VarzOptions{})
	if err != nil {
		return Stats{}, err
	}
	return Stats{InMessages: v.InMsgs, OutMessages: v.OutMsgs, InBytes: v.InBytes, OutBytes: v.OutBytes}, nil
}
