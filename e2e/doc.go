// Package e2e tests the deployments: images, the compose project with its profiles, a sandbox behind NAT, units and
// scripts for plain hosts. Its tests use a real Docker engine and network namespaces and take minutes, so they run only
// when SANDBUS_E2E is set: "make e2e" does that, after it has made the images.
package e2e
