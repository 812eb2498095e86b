package api

import (
	"context"
)

// KeyLimits are the limits by key that are in use.
type KeyLimits struct {
	Keys []KeyStatus `json:"keys"`
}

// KeyLimits implements Directory.
func (c *Session) KeyLimits(ctx context.Context) (KeyLimits, error) {
	if err := c.may("KeyLimits"); err != nil {
		return KeyLimits{}, err
	}
	all, err := c.s.b.KeyLimits().Statuses(ctx)
	return KeyLimits{Keys: all}, err
}
