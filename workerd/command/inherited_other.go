//go:build !linux

package command

// keepInherited is for Linux; elsewhere the starter must close what is not for the sandbox.
func keepInherited() {}
