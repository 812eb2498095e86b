package embedded

import "github.com/nats-io/nats-server/v2/server"

// Figures are what a node has counted since it started.
type Figures struct {
	// InMessages and InBytes came from clients, OutMessages and OutBytes went to
	// them: requests, acknowledgements and deliveries alike.
	InMessages, OutMessages int64
	InBytes, OutBytes       int64
}

// Figures reads them. It costs the node a moment: once a second is fine.
func (n *Node) Figures() (Figures, error) {
	v, err := n.server().Varz(&server.VarzOptions{})
	if err != nil {
		return Figures{}, err
	}
	return Figures{InMessages: v.InMsgs, OutMessages: v.OutMsgs, InBytes: v.InBytes, OutBytes: v.OutBytes}, nil
}
