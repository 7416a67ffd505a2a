// Loads hook files, matches them against a config.json and writes it with the hooks, as podman does, for
// comparison with `oci-hooks inject`. `contrib/bench-inject` builds it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containers/common/pkg/hooks"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	if err := inject(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func inject(dir, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config rspec.Spec
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	manager, err := hooks.New(context.Background(), []string{dir}, []string{"precreate"})
	if err != nil {
		return err
	}
	if _, err := manager.Hooks(&config, config.Annotations, len(config.Mounts) > 0); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(&config)
}
