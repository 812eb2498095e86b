package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// seriesBuckets is how many buckets a series has without --since.
const seriesBuckets = 24

// seriesQuery asks for buckets of a width from --since to --until, or for the last ones.
func seriesQuery(width string, filter ask.Filter, now time.Time) (ask.SeriesQuery, error) {
	d, err := parseDuration(width)
	if err != nil || d < time.Millisecond {
		return ask.SeriesQuery{}, usagef("--series %s: a bucket is as wide as a duration: 10m, 1h, 1d", width)
	}
	q := ask.SeriesQuery{Since: filter.Since, Until: filter.Until, BucketMS: d.Milliseconds()}
	if q.Until.IsZero() {
		q.Until = now
	}
	if q.Since.IsZero() {
		q.Since = q.Until.Truncate(d).Add(-(seriesBuckets - 1) * d)
	}
	filter.Since, filter.Until = protocol.Time{}, protocol.Time{} // these bound the series
	q.Filter = filter
	return q, nil
}

// series prints a series.
func (a *app) series(ctx context.Context, r api.Reader, q ask.SeriesQuery, fresh freshness) error {
	q.Question = fresh.ask()
	answer, err := r.Series(ctx, q)
	if err == nil {
		err = fresh.check(answer.Position)
	}
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(answer)
	}
	rows := [][]string{{"SINCE (UTC)", "SUBMITTED", "SUCCEEDED", "FAILED", "WHOLE P50/P95"}}
	for _, b := range answer.Buckets {
		rows = append(rows, []string{b.Since.UTC().Format(time.DateTime), fmt.Sprint(b.Submitted), fmt.Sprint(b.Succeeded), fmt.Sprint(b.Failed), twoOf(b.Whole)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	return a.stand(fresh, answer.Position, "")
}
