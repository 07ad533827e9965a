package bus

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/permissions.md anew")

const permissionsDoc = "../docs/permissions.md"

// TestPermissionTable holds docs/permissions.md to the lists that hubs enforce: go test ./bus -run PermissionTable -update
func TestPermissionTable(t *testing.T) {
	want := permissionTable()
	if *update {
		require.NoError(t, os.WriteFile(permissionsDoc, []byte(want), 0o644))
	}
	got, err := os.ReadFile(permissionsDoc)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "docs/permissions.md is stale: go test ./bus -run PermissionTable -update")
}

func permissionTable() string {
	var b strings.Builder
	b.WriteString(`# Who may do what

Made from ` + "`bus.Identity.Permissions`" + ` by ` + "`go test ./bus -run PermissionTable -update`" + `. A test fails when it is stale. An embedded hub gives
these lists to each client; the role keys of an operator carry them as templates. What is not listed the hub refuses.

Z is the zone of the credential and X its name.

| role | may subscribe | may publish |
|---|---|---|
`)
	cell := func(list []string) string { return "`" + strings.Join(list, "` `") + "`" }
	for _, r := range Roles() {
		p := Identity{Role: r, Zone: "Z", Name: "X"}.Permissions()
		what := string(r)
		if r.InSystemAccount() {
			what += " (in the system account)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, cell(p.Subscribe), cell(p.Publish))
		if r == RoleHarness {
			p = Identity{Role: r, Zone: "Z", Name: "X", Zones: []Zone{"Z1", "Z2"}}.Permissions()
			fmt.Fprintf(&b, "| %s for zones Z1 and Z2 | %s | %s |\n", what, cell(p.Subscribe), cell(p.Publish))
		}
	}
	return b.String()
}

// TestTemplates holds the templates to the lists: filled in, they are the same.
func TestTemplates(t *testing.T) {
	for _, id := range []Identity{
		{Role: RoleSandbox, Zone: "z", Name: "x"},
		{Role: RoleHarness, Zone: DefaultZone, Name: "x", Zones: []Zone{"z"}},
		{Role: RoleRegistrar, Zone: DefaultZone, Name: "x"},
		{Role: RoleSite, Zone: "z", Name: "x"},
		{Role: RoleSystem, Zone: DefaultZone, Name: "x"},
		{Role: RoleAdmin, Zone: DefaultZone, Name: "x"},
	} {
		fill := strings.NewReplacer("{{tag(zone)}}", "z", "{{name()}}", "x")
		got := TemplatePermissions(id.Role)
		for _, list := range [][]string{got.Subscribe, got.Publish} {
			for i := range list {
				list[i] = fill.Replace(list[i])
			}
		}
		require.Equal(t, id.Permissions(), got, id.Role)
		require.NotEmpty(t, got.Subscribe)
		require.NotEmpty(t, got.Publish)
	}
}
