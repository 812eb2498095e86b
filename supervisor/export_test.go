package supervisor

// WithUnfinishedMax has passes keep so many handoffs in mind.
func (c Config) WithUnfinishedMax(n int) Config {
	c.unfinishedMax = n
	return c
}
