//go:build temporal

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/server/common/cluster"
	serverconfig "go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	sqlite "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
)

const (
	temporalNamespace = "peers"
	temporalCluster   = "active"
	loopback          = "127.0.0.1"
)

// temporalServerConfig is what can be set of the server, which runs in this process.
type temporalServerConfig struct {
	store       string
	synchronous string
	// With PostgreSQL in place of SQLite:
	postgres          string
	synchronousCommit string
	connections       int

	shards     int
	partitions int
	services   string
}

func (c *temporalServerConfig) register(f *flag.FlagSet) {
	f.StringVar(&c.store, "store", "memory", "of SQLite: memory, or the journal mode of a file that is made for the run: wal, delete, …")
	f.StringVar(&c.synchronous, "synchronous", "full", "of SQLite on a file: full syncs each commit, normal with wal only at checkpoints")
	f.StringVar(&c.postgres, "postgres", "", "PostgreSQL in place of SQLite, as a URL or key=value words; its databases temporal and temporal_visibility are dropped and made anew")
	f.StringVar(&c.synchronousCommit, "synchronous-commit", "on", "of PostgreSQL: on waits for the disk, off does not")
	f.IntVar(&c.connections, "pool", 40, "connections to each database of PostgreSQL at most")
	f.IntVar(&c.shards, "shards", 1, "of the history service")
	f.IntVar(&c.partitions, "partitions", 1, "of the task queue")
	f.StringVar(&c.services, "services", "frontend,history,matching", "of the server; the worker service keeps house")
}

// temporalServer is a whole Temporal in this process, on loopback alone.
type temporalServer struct {
	temporal.Server
	address string
	dir     string // of the database file, if there is one
}

func startTemporalServer(ctx context.Context, cfg temporalServerConfig) (_ *temporalServer, err error) {
	s := &temporalServer{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	main, visibility, err := s.databases(ctx, cfg)
	if err != nil {
		return nil, err
	}
	whole, err := temporalServerSettings(cfg, main, visibility)
	if err != nil {
		return nil, err
	}
	s.address = whole.PublicClient.HostPort
	server, err := temporal.NewServer(
		temporal.WithConfig(whole),
		temporal.ForServices(strings.Split(cfg.services, ",")),
		temporal.WithLogger(log.NewNoopLogger()),
		temporal.WithDynamicConfigClient(temporalDynamicSettings(cfg)),
	)
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	s.Server = server
	return s, nil
}

// databases makes empty ones, with the namespace. In SQLite both are one.
func (s *temporalServer) databases(ctx context.Context, cfg temporalServerConfig) (main, visibility *serverconfig.SQL, err error) {
	if cfg.postgres != "" {
		main, visibility, err = postgresDatabases(ctx, cfg)
	} else {
		main, err = s.sqlite(cfg)
		visibility = main
	}
	if err != nil {
		return nil, nil, err
	}
	namespace, err := sqliteschema.NewNamespaceConfig(temporalCluster, temporalNamespace, false, nil)
	if err != nil {
		return nil, nil, err
	}
	// For any SQL database, in spite of the name of its package.
	return main, visibility, sqliteschema.CreateNamespaces(main, namespace)
}

func (s *temporalServer) sqlite(cfg temporalServerConfig) (*serverconfig.SQL, error) {
	database := &serverconfig.SQL{PluginName: sqlite.PluginName}
	if cfg.store == "memory" {
		// One name is one database for as long as this process runs.
		database.DatabaseName = "peers-" + strconv.Itoa(rand.Int())
		database.ConnectAttributes = map[string]string{"mode": "memory", "cache": "shared"}
		return database, nil
	}
	dir, err := os.MkdirTemp("", "handoff-peers-temporal-")
	if err != nil {
		return nil, err
	}
	s.dir = dir
	database.DatabaseName = filepath.Join(dir, "temporal.db")
	database.ConnectAttributes = map[string]string{"mode": "rwc", "journal_mode": cfg.store, "synchronous": cfg.synchronous}
	return database, sqliteschema.SetupSchema(database)
}

func temporalServerSettings(cfg temporalServerConfig, main, visibility *serverconfig.SQL) (*serverconfig.Config, error) {
	if cfg.shards < 1 || cfg.partitions < 1 {
		return nil, errors.New("-shards and -partitions are 1 or more")
	}
	ports, err := freePorts(8)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(loopback, strconv.Itoa(ports[0]))
	services := map[string]serverconfig.Service{}
	for i, name := range []string{"frontend", "history", "matching", "worker"} {
		services[name] = serverconfig.Service{RPC: serverconfig.RPC{GRPCPort: ports[2*i], MembershipPort: ports[2*i+1], BindOnIP: loopback}}
	}
	return &serverconfig.Config{
		Global: serverconfig.Global{Membership: serverconfig.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: loopback}},
		Persistence: serverconfig.Persistence{
			DefaultStore:     "main",
			VisibilityStore:  "visibility",
			NumHistoryShards: int32(cfg.shards),
			DataStores:       map[string]serverconfig.DataStore{"main": {SQL: main}, "visibility": {SQL: visibility}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        temporalCluster,
			CurrentClusterName:       temporalCluster,
			ClusterInformation: map[string]cluster.ClusterInformation{
				temporalCluster: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: address},
			},
		},
		DCRedirectionPolicy: serverconfig.DCRedirectionPolicy{Policy: "noop"},
		Services:            services,
		Archival: serverconfig.Archival{
			History:    serverconfig.HistoryArchival{State: "disabled"},
			Visibility: serverconfig.VisibilityArchival{State: "disabled"},
		},
		NamespaceDefaults: serverconfig.NamespaceDefaults{Archival: serverconfig.ArchivalNamespaceDefaults{
			History:    serverconfig.HistoryArchivalNamespaceDefaults{State: "disabled"},
			Visibility: serverconfig.VisibilityArchivalNamespaceDefaults{State: "disabled"},
		}},
		PublicClient: serverconfig.PublicClient{HostPort: address},
	}, nil
}

// temporalDynamicSettings takes the rate limits away, so that none of them is what
// is measured, and sets what the flags set.
func temporalDynamicSettings(cfg temporalServerConfig) dynamicconfig.StaticClient {
	settings := dynamicconfig.StaticClient{
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  cfg.partitions,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): cfg.partitions,
	}
	const unlimited = 1_000_000
	for _, limit := range []dynamicconfig.Key{
		dynamicconfig.FrontendRPS.Key(),
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key(),
		dynamicconfig.FrontendMaxConcurrentLongRunningRequestsPerInstance.Key(),
		dynamicconfig.FrontendPersistenceMaxQPS.Key(),
		dynamicconfig.HistoryRPS.Key(),
		dynamicconfig.HistoryPersistenceMaxQPS.Key(),
		dynamicconfig.MatchingRPS.Key(),
		dynamicconfig.MatchingPersistenceMaxQPS.Key(),
		dynamicconfig.VisibilityPersistenceMaxReadQPS.Key(),
		dynamicconfig.VisibilityPersistenceMaxWriteQPS.Key(),
	} {
		settings[limit] = unlimited
	}
	return settings
}

// freePorts are ports of loopback that nothing listened on a moment ago: the server
// cannot tell which ones it got. PostgreSQL's schema keeps them in 15 bits, below those
// that the kernel gives out.
func freePorts(n int) ([]int, error) {
	const least, most, tries = 10_000, 1<<15 - 1, 1_000
	var ports []int
	for range tries {
		if len(ports) == n {
			return ports, nil
		}
		port := least + rand.N(most-least)
		l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return nil, errors.New("no free ports on loopback")
}

func (s *temporalServer) stop() {
	if s.Server != nil {
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "peers: temporal did not stop:", err)
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
