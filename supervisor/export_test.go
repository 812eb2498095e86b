package supervisor

// WithRecall has passes keep so many handoffs in mind.
func (c Config) WithRecall(n int) Config {
	c.recall = n
	return c
}
