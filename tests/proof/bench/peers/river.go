package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// smallResult is what a handler leaves when it leaves something.
const smallResult = `{"ok":true}`

// riverConfig is what can be set to make River faster. The defaults are the
// best that were found; README.md tells how.
type riverConfig struct {
	postgres          string
	synchronousCommit string
	poolSize          int
	fetchCooldown     time.Duration
	fetchPoll         time.Duration
	retention         time.Duration
	pollOnly          bool
	jsonIndexes       bool
	clients           int
}

func (c *riverConfig) register(f *flag.FlagSet) {
	f.StringVar(&c.postgres, "postgres", "postgres:///postgres", "the database, as a URL or key=value words; its schema \"peers\" is dropped and made anew")
	f.StringVar(&c.synchronousCommit, "synchronous-commit", "on", "on waits for the disk, off does not")
	f.IntVar(&c.poolSize, "pool", 40, "connections to PostgreSQL at most")
	f.DurationVar(&c.fetchCooldown, "fetch-cooldown", time.Millisecond, "FetchCooldown")
	f.DurationVar(&c.fetchPoll, "fetch-poll-interval", 100*time.Millisecond, "FetchPollInterval")
	f.DurationVar(&c.retention, "completed-retention", 24*time.Hour, "CompletedJobRetentionPeriod; -1ns keeps completed jobs for ever")
	f.BoolVar(&c.pollOnly, "poll-only", false, "PollOnly")
	f.BoolVar(&c.jsonIndexes, "json-indexes", false, "keep the GIN indexes over args and metadata, which River makes but does not need")
	f.IntVar(&c.clients, "river-clients", 1, "river.Client in this process, which share the slots")
}

// riverSchema is made anew for each run.
const riverSchema = "peers"

type riverArgs struct {
	Payload string `json:"p"`
}

func (riverArgs) Kind() string { return "work" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	bench *bench
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	if w.bench.handle(job.Args.Payload) {
		return river.JobSnooze(time.Second)
	}
	if w.bench.cfg.result {
		return river.RecordOutput(ctx, map[string]bool{"ok": true})
	}
	return nil
}

type riverSystem struct {
	bench   *bench
	pool    *pgxpool.Pool
	clients []*river.Client[pgx.Tx]
	watched []func() // end the subscriptions
}

func openRiver(ctx context.Context, b *bench, cfg riverConfig) (system, error) {
	if cfg.clients < 1 || cfg.clients > b.cfg.slots {
		return nil, errors.New("-river-clients is from 1 to the number of slots")
	}
	poolConfig, err := pgxpool.ParseConfig(cfg.postgres)
	if err != nil {
		return nil, err
	}
	poolConfig.MaxConns = int32(cfg.poolSize)
	poolConfig.MinConns = int32(cfg.poolSize)
	poolConfig.ConnConfig.RuntimeParams["search_path"] = riverSchema
	poolConfig.ConnConfig.RuntimeParams["synchronous_commit"] = cfg.synchronousCommit
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, err
	}
	s := &riverSystem{bench: b, pool: pool}
	if err := s.prepare(ctx, cfg); err != nil {
		return nil, err
	}
	for i := range cfg.clients {
		slots := b.cfg.slots / cfg.clients
		if i < b.cfg.slots%cfg.clients {
			slots++
		}
		if err := s.startClient(ctx, cfg, slots); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// prepare makes the schema, without what an earlier run has left.
func (s *riverSystem) prepare(ctx context.Context, cfg riverConfig) error {
	fresh := []string{
		"DROP SCHEMA IF EXISTS " + riverSchema + " CASCADE",
		"CREATE SCHEMA " + riverSchema,
	}
	if err := s.exec(ctx, fresh...); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if !cfg.jsonIndexes {
		if err := s.exec(ctx, "DROP INDEX river_job_args_index, river_job_metadata_index"); err != nil {
			return err
		}
	}
	// So that each run begins with nothing to write behind it.
	return s.exec(ctx, "CHECKPOINT")
}

func (s *riverSystem) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := s.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func (s *riverSystem) startClient(ctx context.Context, cfg riverConfig, slots int) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{bench: s.bench})
	config := &river.Config{
		CompletedJobRetentionPeriod: cfg.retention,
		FetchCooldown:               cfg.fetchCooldown,
		FetchPollInterval:           cfg.fetchPoll,
		JobTimeout:                  -1,
		PollOnly:                    cfg.pollOnly,
		Queues:                      map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}},
		Workers:                     workers,
		Logger:                      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if !cfg.jsonIndexes {
		config.ReindexerIndexNames = []string{}
	}
	client, err := river.NewClient(riverpgxv5.New(s.pool), config)
	if err != nil {
		return err
	}
	// The events come when the completion is committed. River drops what does not
	// fit, so the channel holds more than can be open.
	events, cancel := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: 1 << 16,
		Kinds:    []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed, river.EventKindJobCancelled},
	})
	s.watched = append(s.watched, cancel)
	go func() { // until cancel closes the channel
		for event := range events {
			s.ended(event)
		}
	}()
	s.clients = append(s.clients, client)
	return client.Start(ctx)
}

// ended takes the number of the handoff out of the encoded arguments, without
// the cost of decoding them: {"p": "0123456789abcdef…"}.
func (s *riverSystem) ended(event *river.Event) {
	if event.Kind != river.EventKindJobCompleted {
		s.bench.fail(fmt.Errorf("a job is %s", event.Kind))
		return
	}
	_, value, _ := strings.Cut(string(event.Job.EncodedArgs), ":")
	s.bench.acknowledgedNow(strings.TrimLeft(value, ` "`))
}

func (s *riverSystem) submit(ctx context.Context, handoffs []handoff) error {
	// Any client inserts for all: they share the queue.
	client := s.clients[handoffs[0].seq%uint64(len(s.clients))]
	if len(handoffs) == 1 {
		_, err := client.Insert(ctx, riverArgs{Payload: handoffs[0].payload}, nil)
		return err
	}
	many := make([]river.InsertManyParams, len(handoffs))
	for i, h := range handoffs {
		many[i] = river.InsertManyParams{Args: riverArgs{Payload: h.payload}}
	}
	_, err := client.InsertManyFast(ctx, many)
	return err
}

func (s *riverSystem) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, client := range s.clients {
		if err := client.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "peers: river did not stop in time:", err)
		}
	}
	for _, end := range s.watched {
		end()
	}
	s.pool.Close()
}
