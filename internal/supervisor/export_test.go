package supervisor

// WithUnfinishedMax has sweeps keep so many handoffs in mind.
func (c Config) WithUnfinishedMax(n int) Config {
	c.unfinishedMax = n
	return c
}
