package index

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// Series returns how many handoffs were submitted and closed in each bucket of a time span.
func (ix *Index) Series(ctx context.Context, q ask.SeriesQuery) (ask.SeriesAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.SeriesAnswer{}, err
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.SeriesAnswer) error {
		s := newSeries(q)
		all, err := v.selectionOf(q.Filter)
		if err == nil && q.Counts && len(all.text) == 0 && s.since%hourMicros == 0 && s.width%hourMicros == 0 {
			err = v.fillHours(s)
			a.Buckets = s.answer()
			return err
		}
		filter := q.Filter
		if filter.UpdatedSince.Before(q.Since) {
			filter.UpdatedSince = q.Since // an earlier handoff was neither submitted nor closed since
		}
		rows, err := v.selectionOf(filter)
		if err == nil {
			err = v.fillSeries(rows, s)
		}
		a.Buckets = s.answer()
		return err
	})
}

func (v view) fillSeries(of selection, s *series) error {
	return v.each(func(rows *sql.Rows) error {
		var submitted, closed int64
		var outcome int
		var whole *int64
		if err := rows.Scan(&submitted, &closed, &outcome, &whole); err != nil {
			return err
		}
		b, _ := s.at(submitted)
		b.Submitted++
		if outcome != 0 {
			b, took := s.at(closed)
			*ended(b, outcomes.word(outcome))++
			took.add(whole)
		}
		return nil
	}, fmt.Sprintf("SELECT h.submitted, h.closed, h.outcome, h.whole_ms FROM %s WHERE %s", of.from, of.where()), of.args...)
}

// fillHours fills a series of whole hours from the table of hours.
func (v view) fillHours(s *series) error {
	return v.each(func(rows *sql.Rows) error {
		var at, n int64
		var outcome int
		if err := rows.Scan(&at, &outcome, &n); err != nil {
			return err
		}
		b, _ := s.at(at * hourMicros)
		if outcome == 0 {
			b.Submitted += n
		} else {
			*ended(b, outcomes.word(outcome)) += n
		}
		return nil
	}, "SELECT at, outcome, n FROM hour WHERE at >= ?", s.since/hourMicros)
}

// series collects handoffs into buckets of equal width.
type series struct {
	since, width int64 // µs
	buckets      []ask.Bucket
	whole        []histogram
	outside      ask.Bucket // of the span
	tookOutside  histogram
}

func newSeries(q ask.SeriesQuery) *series {
	width := time.Duration(q.BucketMS) * time.Millisecond
	n := int((q.Until.Sub(q.Since) + width - 1) / width)
	s := &series{since: toMicros(q.Since), width: width.Microseconds(), buckets: make([]ask.Bucket, n), whole: make([]histogram, n)}
	for i := range s.buckets {
		s.buckets[i].Since = q.Since.Add(time.Duration(i) * width).UTC()
	}
	return s
}

// at returns the bucket of an instant, and the durations of its closed handoffs.
func (s *series) at(instant int64) (*ask.Bucket, *histogram) {
	if i := (instant - s.since) / s.width; instant >= s.since && i < int64(len(s.buckets)) {
		return &s.buckets[i], &s.whole[i]
	}
	return &s.outside, &s.tookOutside
}

// ended is the count of a bucket for handoffs with an outcome.
func ended(b *ask.Bucket, outcome protocol.Outcome) *int64 {
	if outcome == protocol.OutcomeSuccess || outcome == protocol.OutcomePartial {
		return &b.Succeeded
	}
	return &b.Failed
}

func (s *series) answer() []ask.Bucket {
	for i := range s.buckets {
		s.buckets[i].Whole = s.whole[i].durations()
	}
	return s.buckets
}
