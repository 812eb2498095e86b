package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqConfig is what can be set to make Asynq faster. The defaults are the
// best that were found; README.md tells how.
type asynqConfig struct {
	redis         string
	servers       int
	poolSize      int
	checkInterval time.Duration
	delayedCheck  time.Duration
}

func (c *asynqConfig) register(f *flag.FlagSet) {
	f.StringVar(&c.redis, "redis", "127.0.0.1:6379", "where Redis listens: host:port, or the path of a Unix socket")
	f.IntVar(&c.servers, "asynq-servers", 4, "asynq.Server in this process, which share the slots; each takes tasks one after the other")
	f.IntVar(&c.poolSize, "pool", 64, "connections to Redis at most")
	f.DurationVar(&c.checkInterval, "task-check-interval", 5*time.Millisecond, "TaskCheckInterval")
	f.DurationVar(&c.delayedCheck, "delayed-task-check-interval", 100*time.Millisecond, "DelayedTaskCheckInterval")
}

const asynqTask = "work"

// errLater is what a handler returns to be called again in a second. It counts
// as no failure, so Asynq keeps no statistics of it.
var errLater = errors.New("later")

type asynqSystem struct {
	bench   *bench
	redis   *redis.Client
	client  *asynq.Client
	servers []*asynq.Server
	options []asynq.Option
}

func openAsynq(ctx context.Context, b *bench, cfg asynqConfig) (system, error) {
	if cfg.servers < 1 || cfg.servers > b.cfg.slots {
		return nil, errors.New("-asynq-servers is from 1 to the number of slots")
	}
	if b.cfg.batch > 1 {
		return nil, errors.New("asynq enqueues one task at a time: no -batch")
	}
	s := &asynqSystem{
		bench: b,
		redis: redis.NewClient(&redis.Options{Addr: cfg.redis, PoolSize: cfg.poolSize}),
	}
	s.redis.AddHook(doneHook{bench: b})
	if size, err := s.redis.DBSize(ctx).Result(); err != nil {
		return nil, err
	} else if size > 0 {
		return nil, fmt.Errorf("the Redis at %s holds %d keys; it is to be empty", cfg.redis, size)
	}
	s.client = asynq.NewClientFromRedisClient(s.redis)
	if b.cfg.result {
		s.options = append(s.options, asynq.Retention(time.Hour))
	}
	for i := range cfg.servers {
		slots := b.cfg.slots / cfg.servers
		if i < b.cfg.slots%cfg.servers {
			slots++
		}
		server := asynq.NewServerFromRedisClient(s.redis, asynq.Config{
			Concurrency:              slots,
			TaskCheckInterval:        cfg.checkInterval,
			DelayedTaskCheckInterval: cfg.delayedCheck,
			RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
			IsFailure:                func(err error) bool { return !errors.Is(err, errLater) },
			LogLevel:                 asynq.ErrorLevel,
		})
		if err := server.Start(asynq.HandlerFunc(s.work)); err != nil {
			return nil, err
		}
		s.servers = append(s.servers, server)
	}
	return s, nil
}

func (s *asynqSystem) submit(ctx context.Context, handoffs []handoff) error {
	for _, h := range handoffs {
		// The number is the task's id as well: doneHook sees nothing but ids.
		options := append([]asynq.Option{asynq.TaskID(h.payload[:stampBytes])}, s.options...)
		if _, err := s.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, []byte(h.payload)), options...); err != nil {
			return err
		}
	}
	return nil
}

func (s *asynqSystem) work(_ context.Context, task *asynq.Task) error {
	if s.bench.handle(string(task.Payload()[:stampBytes])) {
		return errLater
	}
	if s.bench.cfg.result {
		if _, err := task.ResultWriter().Write([]byte(smallResult)); err != nil {
			s.bench.fail(fmt.Errorf("result: %w", err))
		}
	}
	return nil
}

func (s *asynqSystem) stop(context.Context) {
	for _, server := range s.servers {
		server.Shutdown()
	}
	_ = s.redis.Close()
}

// doneHook sees when Redis has answered the script with which Asynq ends a
// task. Asynq does not report it: without the hook, the end of the handler would be the last
// that can be seen, and the round trip after it would be left out.
type doneHook struct{ bench *bench }

func (doneHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (doneHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h doneHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if id, isDone := doneTask(cmd.Args()); isDone && err == nil {
			h.bench.acknowledgedNow(id)
		}
		return err
	}
}

// doneTask is the id of the task that these arguments end: EVALSHA, a hash, the
// number of keys, and the keys of doneCmd, or of markAsCompleteCmd for a task
// that is retained (asynq's internal/rdb). The other scripts begin with other
// keys.
func doneTask(args []any) (id string, isDone bool) {
	const keys, active, lease = 2, 3, 4
	if len(args) < 9 || !isKey(args[active], ":active") || !isKey(args[lease], ":lease") {
		return "", false
	}
	switch {
	case args[keys] == 5 && isKey(args[7], ":processed"): // doneCmd
		return afterLastColon(args[5]), true
	case args[keys] == 6 && isKey(args[5], ":completed"): // markAsCompleteCmd
		return afterLastColon(args[6]), true
	}
	return "", false
}

func isKey(arg any, suffix string) bool {
	key, isString := arg.(string)
	return isString && strings.HasSuffix(key, suffix)
}

func afterLastColon(arg any) string {
	key, _ := arg.(string)
	return key[strings.LastIndexByte(key, ':')+1:]
}
