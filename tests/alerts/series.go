package main

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// series are figures over time, as the evaluator asks for them.
type series []promql.Series

// Querier implements storage.Queryable. The evaluator picks its instants itself.
func (s series) Querier(int64, int64) (storage.Querier, error) {
	return &querier{storage.NoopQuerier(), s}, nil
}

type querier struct {
	storage.Querier
	all series
}

// Select implements storage.Querier.
func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &set{at: -1}
	for _, s := range q.all {
		if matches(s.Metric, matchers) {
			found.all = append(found.all, s)
		}
	}
	return found
}

func matches(metric labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(metric.Get(m.Name)) {
			return false
		}
	}
	return true
}

// set implements storage.SeriesSet.
type set struct {
	all series
	at  int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *set) At() storage.Series                { return promql.NewStorageSeries(s.all[s.at]) }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }
