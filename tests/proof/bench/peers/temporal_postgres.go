//go:build temporal

package main

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/jackc/pgx/v5"
	serverconfig "go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/resolver"
	"go.temporal.io/server/schema"
	pgschema "go.temporal.io/server/schema/postgresql/v12"
)

// postgresDatabases makes Temporal's two databases anew on a PostgreSQL that is the
// run's own, with the schemas that the server brings.
func postgresDatabases(ctx context.Context, cfg temporalServerConfig) (main, visibility *serverconfig.SQL, err error) {
	admin, err := pgx.Connect(ctx, cfg.postgres)
	if err != nil {
		return nil, nil, err
	}
	where := admin.Config()
	defer admin.Close(ctx)
	for _, one := range []struct {
		made                  **serverconfig.SQL
		name, schema, version string
	}{
		{&main, "temporal", "temporal", pgschema.Version},
		{&visibility, "temporal_visibility", "visibility", pgschema.VisibilityVersion},
	} {
		for _, statement := range []string{"DROP DATABASE IF EXISTS " + one.name, "CREATE DATABASE " + one.name} {
			if _, err := admin.Exec(ctx, statement); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", statement, err)
			}
		}
		*one.made = &serverconfig.SQL{
			PluginName:   postgresql.PluginNamePGX,
			User:         where.User,
			Password:     where.Password,
			DatabaseName: one.name,
			// The address that Temporal puts into a URL stays empty: the path of a socket
			// has no place in it.
			ConnectAttributes: map[string]string{
				"host": where.Host, "port": strconv.Itoa(int(where.Port)), "synchronous_commit": cfg.synchronousCommit,
			},
			MaxConns:     cfg.connections,
			MaxIdleConns: cfg.connections,
		}
		if err := postgresSchema(*one.made, one.schema, one.version); err != nil {
			return nil, nil, fmt.Errorf("schema of %s: %w", one.name, err)
		}
	}
	_, err = admin.Exec(ctx, "CHECKPOINT")
	return main, visibility, err
}

func postgresSchema(database *serverconfig.SQL, name, version string) error {
	db, err := sql.NewSQLAdminDB(sqlplugin.DbKindUnknown, database, resolver.NewNoopResolver(), log.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		return err
	}
	defer db.Close()
	statements, err := fs.ReadFile(schema.Assets(), "postgresql/v12/"+name+"/schema.sql")
	if err != nil {
		return err
	}
	if err := db.CreateSchemaVersionTables(); err != nil {
		return err
	}
	if err := db.Exec(string(statements)); err != nil {
		return err
	}
	return db.UpdateSchemaVersion(database.DatabaseName, version, version)
}
