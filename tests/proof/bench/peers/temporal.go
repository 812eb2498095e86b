//go:build temporal

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

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/grpc"
)

func init() {
	systems["temporal"] = func(flags *flag.FlagSet) opener {
		var cfg temporalConfig
		cfg.register(flags)
		return func(ctx context.Context, b *bench) (system, error) { return openTemporal(ctx, b, cfg) }
	}
}

// The forms of a handoff on Temporal.
const (
	formActivity   = "activity"   // a workflow with one activity
	formLocal      = "local"      // a workflow with one local activity
	formStandalone = "standalone" // an activity without a workflow
)

// temporalConfig is what can be set to make Temporal faster. The defaults are the
// best that were found; README.md tells how.
type temporalConfig struct {
	form            string
	server          temporalServerConfig
	workers         int
	workflowPollers int
	activityPollers int
	workflowSlots   int
	stickyCache     int
	eagerStart      bool
	eagerActivity   bool
	gzip            bool
}

func (c *temporalConfig) register(f *flag.FlagSet) {
	c.server.register(f)
	f.StringVar(&c.form, "form", formActivity, "of a handoff: activity (a workflow with one activity), local (with one local activity) or standalone (an activity without a workflow)")
	f.IntVar(&c.workers, "workers", 1, "in this process, each with a connection, which share the slots")
	f.IntVar(&c.workflowPollers, "workflow-pollers", 8, "of a worker: MaxConcurrentWorkflowTaskPollers")
	f.IntVar(&c.activityPollers, "activity-pollers", 8, "of a worker: MaxConcurrentActivityTaskPollers")
	f.IntVar(&c.workflowSlots, "workflow-slots", 64, "of all workers: MaxConcurrentWorkflowTaskExecutionSize")
	f.IntVar(&c.stickyCache, "sticky-cache", 10_000, "workflows whose state this process keeps")
	f.BoolVar(&c.eagerStart, "eager-start", false, "EnableEagerStart: the submitter's own process gets the first workflow task in the answer to its submit")
	f.BoolVar(&c.gzip, "gzip", false, "compress what goes to the server and comes from it, as the SDK does unless told otherwise")
	f.BoolVar(&c.eagerActivity, "eager-activity", true, "the worker gets the activity in the answer to its workflow task")
}

const temporalQueue = "work"

type temporalSystem struct {
	bench   *bench
	cfg     temporalConfig
	server  *temporalServer
	clients []client.Client
	workers []worker.Worker
}

func openTemporal(ctx context.Context, b *bench, cfg temporalConfig) (_ system, err error) {
	switch {
	case cfg.form != formActivity && cfg.form != formLocal && cfg.form != formStandalone:
		return nil, errors.New("-form is activity, local or standalone")
	case cfg.workers < 1 || cfg.workers > b.cfg.slots:
		return nil, errors.New("-workers is from 1 to the number of slots")
	case b.cfg.batch > 1:
		return nil, errors.New("temporal starts one workflow at a time: no -batch")
	case b.cfg.result:
		return nil, errors.New("temporal is not measured with -result")
	}
	s := &temporalSystem{bench: b, cfg: cfg}
	defer func() {
		if err != nil {
			s.stop(ctx)
		}
	}()
	if s.server, err = startTemporalServer(ctx, cfg.server); err != nil {
		return nil, err
	}
	worker.SetStickyWorkflowCacheSize(cfg.stickyCache)
	for range cfg.workers {
		if err := s.startWorker(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// startWorker connects, and starts a worker on the connection.
func (s *temporalSystem) startWorker(ctx context.Context) error {
	var compression client.GrpcCompression = &client.GrpcCompressionNone{}
	if s.cfg.gzip {
		compression = &client.GrpcCompressionGzip{}
	}
	c, err := client.NewLazyClient(client.Options{
		HostPort:  s.server.address,
		Namespace: temporalNamespace,
		Logger:    log.NewStructuredLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))),
		ConnectionOptions: client.ConnectionOptions{
			GrpcCompression: compression,
			DialOptions:     []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.watch)},
		},
	})
	if err != nil {
		return err
	}
	s.clients = append(s.clients, c)
	if err := ready(ctx, c); err != nil {
		return err
	}
	slots := max(1, s.bench.cfg.slots/s.cfg.workers)
	w := worker.New(c, temporalQueue, worker.Options{
		MaxConcurrentActivityExecutionSize:      slots,
		MaxConcurrentLocalActivityExecutionSize: slots,
		MaxConcurrentWorkflowTaskExecutionSize:  max(2, s.cfg.workflowSlots/s.cfg.workers),
		MaxConcurrentWorkflowTaskPollers:        s.cfg.workflowPollers,
		MaxConcurrentActivityTaskPollers:        s.cfg.activityPollers,
		DisableEagerActivities:                  !s.cfg.eagerActivity,
		DisableWorkflowWorker:                   s.cfg.form == formStandalone,
	})
	if s.cfg.form != formStandalone {
		w.RegisterWorkflowWithOptions(s.workflow, workflow.RegisterOptions{Name: "work"})
	}
	w.RegisterActivityWithOptions(s.work, activity.RegisterOptions{Name: "work"})
	s.workers = append(s.workers, w)
	return w.Start()
}

// ready waits until the server answers: it says that it has started before it does.
func ready(ctx context.Context, c client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		_, err := c.CheckHealth(ctx, nil)
		if err == nil {
			return nil
		}
		if !wait(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the server is not healthy: %w", err)
		}
	}
}

// retries has the first attempt that is put off come back a second later.
var retries = &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 1}

// startToClose is the longest that an attempt may take, which Temporal wants to know.
const startToClose = time.Minute

func (s *temporalSystem) workflow(ctx workflow.Context, payload []byte) error {
	if s.cfg.form == formLocal {
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: startToClose, RetryPolicy: retries})
		return workflow.ExecuteLocalActivity(ctx, s.work, payload).Get(ctx, nil)
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: startToClose, RetryPolicy: retries})
	return workflow.ExecuteActivity(ctx, "work", payload).Get(ctx, nil)
}

func (s *temporalSystem) work(_ context.Context, payload []byte) error {
	if s.bench.handle(string(payload[:stampBytes])) {
		// Benign: neither logged nor counted as a failure.
		return temporal.NewApplicationErrorWithOptions("later", "later", temporal.ApplicationErrorOptions{
			Category: temporal.ApplicationErrorCategoryBenign,
		})
	}
	return nil
}

func (s *temporalSystem) submit(ctx context.Context, handoffs []handoff) error {
	for _, h := range handoffs {
		c := s.clients[h.seq%uint64(len(s.clients))]
		id, payload := h.payload[:stampBytes], []byte(h.payload)
		var err error
		if s.cfg.form == formStandalone {
			_, err = c.ExecuteActivity(ctx, client.StartActivityOptions{
				ID: id, TaskQueue: temporalQueue, StartToCloseTimeout: startToClose, RetryPolicy: retries,
			}, "work", payload)
		} else {
			_, err = c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
				ID: id, TaskQueue: temporalQueue, EnableEagerStart: s.cfg.eagerStart,
			}, "work", payload)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watch sees when the server has answered the request that ends a handoff. A worker
// does not report it, and to wait for a workflow's result would be one more request
// for each.
func (s *temporalSystem) watch(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, request, answer, conn, options...)
	if err != nil {
		return err
	}
	switch id, end := ended(request); end {
	case enums.COMMAND_TYPE_UNSPECIFIED:
	case enums.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION:
		s.bench.acknowledgedNow(id)
	default:
		s.bench.fail(fmt.Errorf("handoff %s ends with %s", id, end))
	}
	return nil
}

// ended is the handoff that this request of a worker ends, and how. The number of a
// handoff is the id of its workflow, or of its activity where there is no workflow.
func ended(request any) (id string, end enums.CommandType) {
	switch r := request.(type) {
	case *workflowservice.RespondWorkflowTaskCompletedRequest:
		for _, command := range r.GetCommands() {
			switch command.GetCommandType() {
			case enums.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
				enums.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
				enums.COMMAND_TYPE_CANCEL_WORKFLOW_EXECUTION,
				enums.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION:
				return strings.TrimPrefix(r.GetResourceId(), "workflow:"), command.GetCommandType()
			}
		}
	case *workflowservice.RespondActivityTaskCompletedRequest:
		// The end of an activity ends the handoff only where there is no workflow.
		if id, alone := strings.CutPrefix(r.GetResourceId(), "activity:"); alone {
			return id, enums.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION
		}
	}
	return "", enums.COMMAND_TYPE_UNSPECIFIED
}

func (s *temporalSystem) stop(context.Context) {
	for _, w := range s.workers {
		w.Stop()
	}
	for _, c := range s.clients {
		c.Close()
	}
	if s.server != nil {
		s.server.stop()
	}
}
